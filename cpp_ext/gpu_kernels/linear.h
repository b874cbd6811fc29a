// Products with stored weights, FORMAT's, and what unpacks them.
#include "linear_formats.inc"
#include "linear_tile.inc"
