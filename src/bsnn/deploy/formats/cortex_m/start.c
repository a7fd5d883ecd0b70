/* Runs the golden vectors on a bare Cortex-M4, and counts instructions: under `qemu-system-arm -icount shift=0` each of
   them takes one nanosecond, and SysTick counts at 25 MHz, one tick for 40 of them. Prints by semihosting. */

#include "model.h"
#include "golden.h"
#ifdef SOUND
#include "check_sound.h"
#endif

#define SYST_CSR (*(volatile uint32_t *)0xE000E010)
#define SYST_RVR (*(volatile uint32_t *)0xE000E014)
#define SYST_CVR (*(volatile uint32_t *)0xE000E018)

extern uint32_t begin_of_bss[], end_of_bss[];

static bsnn_input input[BSNN_INPUT_SIZE];
static volatile uint32_t rounds; /* of SysTick, which counts down from 2^24 - 1 */

static void count_round(void)
{
    rounds++;
}

static uint64_t ticks(void)
{
    return (uint64_t)rounds << 24 | (0xFFFFFF - SYST_CVR);
}

static void call_host(int operation, const void *argument)
{
    register int r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}

static void print_number(const char *text, uint32_t number)
{
    char digits[12], reversed[12];
    int i = 0, k = 0;
    do
        reversed[i++] = (char)('0' + number % 10);
    while (number /= 10);
    while (i)
        digits[k++] = reversed[--i];
    digits[k++] = '\n';
    digits[k] = 0;
    call_host(4, text);
    call_host(4, digits);
}

void reset(void)
{
    int64_t outputs[BSNN_CLASSES];
    uint32_t *word, wrong = 0;
    uint64_t begin, taken = 0;
#ifdef SOUND
    uint64_t heard = 0;
    uint32_t unheard = 0, misheard;
#endif
    int i, c;
    for (word = begin_of_bss; word < end_of_bss; word++)
        *word = 0;
    SYST_RVR = 0xFFFFFF;
    SYST_CVR = 0;
    SYST_CSR = 7;
    while (SYST_CVR == 0) /* it counts from its first tick on */
        ;
    for (i = 0; i < GOLDEN; i++) {
#ifdef SOUND
        begin = ticks();
        unheard += (uint32_t)check_hearing(i, input);
        heard += ticks() - begin;
#else
        for (c = 0; c < BSNN_INPUT_SIZE; c++)
            input[c] = golden_inputs[i][c];
#endif
        begin = ticks();
        bsnn_predict(input, outputs);
        taken += ticks() - begin;
        for (c = 0; c < BSNN_CLASSES; c++)
            wrong += outputs[c] != golden_outputs[i][c];
    }
#ifdef SOUND
    print_number("wrong inputs: ", unheard);
    print_number("instructions per sound: ", (uint32_t)(heard * 40 / GOLDEN));
    misheard = (uint32_t)check_listening(input);
    print_number("wrong words: ", misheard);
    wrong += unheard + misheard;
#endif
    print_number("wrong outputs: ", wrong);
    print_number("instructions per prediction: ", (uint32_t)(taken * 40 / GOLDEN));
    call_host(0x18, (const void *)(wrong ? 0x20023 : 0x20026)); /* exit with a failure, or well */
    for (;;)
        ;
}

__attribute__((section(".vectors"), used)) static const void *const vectors[16] = {
    (void *)0x20400000, (void *)reset, [15] = (void *)count_round
};
