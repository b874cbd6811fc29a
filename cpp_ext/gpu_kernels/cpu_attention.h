// Attention for CPU devices. DTYPE, what the .inc files are instantiated for, is that of k and v.
#include "any.h"
#include "attention_of.h"
#include "cpu_packs.h"
#include "gpu_compat.h"
#include "packs.h"

#define DTYPE f32
#include "cpu_attention.inc"
#undef DTYPE

#define DTYPE f16
#include "cpu_attention.inc"
#undef DTYPE

#define DTYPE bf16
#include "cpu_attention.inc"
#undef DTYPE
