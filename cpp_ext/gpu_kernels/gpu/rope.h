// Rotary position embedding. DTYPE is what the .inc files are instantiated for.
#include "../common/dynamic_dtype.h"
#include "../common/gpu_compat.h"
#include "../common/packs.h"

#define DTYPE f32
#include "apply_rope.inc"
#undef DTYPE

#define DTYPE f16
#include "apply_rope.inc"
#undef DTYPE

#define DTYPE bf16
#include "apply_rope.inc"
#undef DTYPE
