// Products with stored weights, and what unpacks them.
#include "formats.h"
#include "linear_tile.inc"
