// Products with matrices of two formats.
#include "../common/reduce.h"

#define BODY "../common/linear_two.inc"
#include "two_formats.h"
