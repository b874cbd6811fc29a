// Products with matrices of several formats: see gpu/linear/linear_beside.h.
#define UNPACKING_ALONE
#include "../../common/formats/formats.h"
#include "../../common/reduce.h"
#include "normed_row.inc"

#define BODY "../../common/linear/linear_beside.inc"
#include "several_formats.inc"
