// Runs the golden vectors, says what the network sees in each, whether all outputs are those of the bsnn engine, and how
// long it took. In a sketch of your own, fill an array `bsnn_input input[BSNN_INPUT_SIZE]` as model.h describes.

#include <bsnn_model.h>

#include "golden.h"

static int64_t outputs[BSNN_CLASSES];

void setup()
{
    Serial.begin(115200);
}

void loop()
{
    for (int i = 0; i < GOLDEN; i++) {
        const unsigned long begin = micros();
        const int found = bsnn_predict(golden_inputs[i], outputs);
        const unsigned long taken = micros() - begin;
        bool right = true;
        for (int c = 0; c < BSNN_CLASSES; c++)
            right = right && outputs[c] == golden_outputs[i][c];
        Serial.print(bsnn_classes[found]);
        Serial.print(right ? ", as expected, " : ", WRONG, ");
        Serial.print(taken);
        Serial.println(" microseconds");
    }
    delay(5000);
}
