// Products with stored weights, and what unpacks them.
#include "../common/formats.h"
#include "linear_tile.inc"
