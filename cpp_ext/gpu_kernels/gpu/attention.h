// Attention. DTYPE, what the .inc files are instantiated for, is that of k and v.
#include "../common/attention.h"
#include "../common/dynamic_dtype.h"
#include "../common/gpu_compat.h"
#include "../common/packs.h"
#include "../common/reduce.h"

#define DTYPE f32
#include "attention_loads.inc"
#include "attention_row.inc"
#include "attention_tile.inc"
#undef DTYPE

#define DTYPE f16
#include "attention_loads.inc"
#include "attention_row.inc"
#include "attention_tile.inc"
#undef DTYPE

#define DTYPE bf16
#include "attention_loads.inc"
#include "attention_row.inc"
#include "attention_tile.inc"
#undef DTYPE

#include "attention_combine.inc"
