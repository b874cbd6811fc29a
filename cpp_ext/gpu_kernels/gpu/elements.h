// Element-wise kernels. DTYPE is what the .inc files are instantiated for.
#include "../common/dynamic_dtype.h"
#include "../common/formulas.h"
#include "../common/gpu_compat.h"
#include "../common/packs.h"

#define DTYPE f32
#include "elements.inc"
#undef DTYPE

#define DTYPE f16
#include "elements.inc"
#undef DTYPE

#define DTYPE bf16
#include "elements.inc"
#undef DTYPE

#include "../common/dense_copy.inc"
