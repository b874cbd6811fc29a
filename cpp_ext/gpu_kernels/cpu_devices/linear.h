// Products with stored weights, and dequantization, for CPU devices: the same kernels, with local size 1.
#include "../common/formats.h"
