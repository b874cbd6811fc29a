// Element-wise kernels for CPU devices. DTYPE is what the .inc files are instantiated for.
#include "any.h"
#include "cpu_packs.h"
#include "formulas.h"
#include "gpu_compat.h"
#include "packs.h"

GELU_ERF_FUNCTION(gelu_erf8, float8)

#define DTYPE f32
#include "cpu_elements.inc"
#undef DTYPE

#define DTYPE f16
#include "cpu_elements.inc"
#undef DTYPE

#define DTYPE bf16
#include "cpu_elements.inc"
#undef DTYPE

#include "dense_copy.inc"
