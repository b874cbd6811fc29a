// Products with stored weights, and dequantization.
#include "../../common/formats/formats.h"
#include "linear_tile.inc"
