// Attention for CPU devices. DTYPE, what the .inc files are instantiated for, is that of k and v.
#include "../common/attention.h"
#include "../common/dynamic_dtype.h"
#include "../common/gpu_compat.h"
#include "../common/packs.h"
#include "packs.h"

#define DTYPE f32
#include "attention.inc"
#undef DTYPE

#define DTYPE f16
#include "attention.inc"
#undef DTYPE

#define DTYPE bf16
#include "attention.inc"
#undef DTYPE
