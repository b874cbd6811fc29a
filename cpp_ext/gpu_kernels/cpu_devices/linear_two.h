// Products with matrices of two formats: see gpu/linear_two.h.
#define UNPACKING_ALONE
#include "../common/formats.h"
#include "../common/reduce.h"

#define BODY "../common/linear_two.inc"
#include "two_formats.inc"
