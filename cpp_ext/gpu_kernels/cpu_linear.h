// Products with stored weights, FORMAT's, and what unpacks them, for CPU devices: the same kernels, local
// size 1.
#include "linear_formats.inc"
