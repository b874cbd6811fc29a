// Products with stored weights, and dequantization.
#include "../../common/formats.h"
#include "linear_tile.inc"
