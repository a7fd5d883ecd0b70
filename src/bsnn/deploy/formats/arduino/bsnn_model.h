/* The network as an Arduino library: see model.h for what bsnn_predict takes and returns. */

#ifdef __AVR__
#error "The network needs a 32-bit processor with its constants in flash; an AVR would copy them into its RAM."
#endif

#include "model.h"
