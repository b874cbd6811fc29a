// Element-wise kernels for CPU devices. DTYPE is what the .inc files are instantiated for.
#include "../common/dynamic_dtype.h"
#include "../common/formulas.h"
#include "../common/gpu_compat.h"
#include "../common/packs.h"
#include "packs.h"

GELU_ERF_FUNCTION(gelu_erf8, float8)

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
