// Element-wise kernels. DTYPE is what the .inc files are instantiated for.
#include "any.h"
#include "formulas.h"
#include "gpu_compat.h"
#include "packs.h"

#define DTYPE f32
#include "elements.inc"
#undef DTYPE

#define DTYPE f16
#include "elements.inc"
#undef DTYPE

#define DTYPE bf16
#include "elements.inc"
#undef DTYPE

#include "dense_copy.inc"
