// Kernels that need the whole of a row. DTYPE is the stored type of those in the list.
#include "any.h"
#include "formulas.h"
#include "gpu_compat.h"
#include "packs.h"
#include "reduce.h"

#define DTYPE f32
#include "rows_of.inc"
#undef DTYPE

#define DTYPE f16
#include "rows_of.inc"
#define WEIGHT f32
#define RMS_NORM rms_norm_f16_weight_f32
#include "rms_norm.inc"
#undef DTYPE

#define DTYPE bf16
#include "rows_of.inc"
#define WEIGHT f32
#define RMS_NORM rms_norm_bf16_weight_f32
#include "rms_norm.inc"
#undef DTYPE
