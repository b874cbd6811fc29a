// Attention. DTYPE, what the .inc files are instantiated for, is that of k and v.
#include "any.h"
#include "attention_of.h"
#include "gpu_compat.h"
#include "packs.h"
#include "reduce.h"

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
