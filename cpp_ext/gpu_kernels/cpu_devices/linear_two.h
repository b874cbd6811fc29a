// Products with matrices of two formats: see gpu/linear_two.h.
#include "../common/reduce.h"

#define BODY "../common/linear_two.inc"
#include "two_formats.h"
