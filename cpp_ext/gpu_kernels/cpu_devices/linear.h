// Products with stored weights, and what unpacks them, for CPU devices: the same kernels, local
// size 1.
#include "../common/formats.h"
