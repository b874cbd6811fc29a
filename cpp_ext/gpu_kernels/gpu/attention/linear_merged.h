// The products of heads with what attention_row computed in parts.
#define UNPACKING_ALONE
#include "../../common/formats/formats.h"
#include "../../common/reduce.h"

#define BODY "../attention/linear_merged.inc"
#include "../linear/several_formats.inc"
