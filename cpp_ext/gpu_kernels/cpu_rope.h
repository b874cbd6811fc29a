// Rotary position embedding for CPU devices. DTYPE is what the .inc files are instantiated for.
#include "cpu_any.h"
#include "cpu_packs.h"
#include "gpu_compat.h"
#include "packs.h"

#define DTYPE f32
#include "cpu_apply_rope.inc"
#undef DTYPE

#define DTYPE f16
#include "cpu_apply_rope.inc"
#undef DTYPE

#define DTYPE bf16
#include "cpu_apply_rope.inc"
#undef DTYPE
