// Kernels that need a whole row. The .inc files are included for each DTYPE.
#include "../../common/dynamic_dtype.h"
#include "../../common/elements/formulas.h"
#include "../../common/gpu_compat.h"
#include "../../common/packs.h"
#include "../../common/reduce.h"

#define BODY "../gpu/rows/row_kernels.inc"
#include "../../common/for_each_dtype.h"

// rms_norm of 16-bit floats with a weight of float32.
#define DTYPE f16
#define WEIGHT f32
#define RMS_NORM rms_norm_f16_weight_f32
#include "rms_norm.inc"
#undef DTYPE

#define DTYPE bf16
#define WEIGHT f32
#define RMS_NORM rms_norm_bf16_weight_f32
#include "rms_norm.inc"
#undef DTYPE
