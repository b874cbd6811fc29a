// Every kernel for devices with fast local memory and many work-items, in the three dtypes.
// DTYPE is what the .inc files are instantiated for.
#include "formulas.h"
#include "gpu_compat.h"
#include "packs.h"
#include "reduce.h"
#include "sums.h"

#define DTYPE f32
#include "gpu_dtype.inc"
#undef DTYPE

#define DTYPE f16
#include "gpu_dtype.inc"
#define WEIGHT f32
#define RMS_NORM rms_norm_f16_weight_f32
#include "rms_norm.inc"
#undef DTYPE

#define DTYPE bf16
#include "gpu_dtype.inc"
#define WEIGHT f32
#define RMS_NORM rms_norm_bf16_weight_f32
#include "rms_norm.inc"
#undef DTYPE
