// Rotary position embedding. The .inc files are included for each DTYPE.
#include "../../common/dynamic_dtype.h"
#include "../../common/gpu_compat.h"
#include "../../common/packs.h"

#define BODY "../gpu/rows/apply_rope.inc"
#include "../../common/for_each_dtype.h"
