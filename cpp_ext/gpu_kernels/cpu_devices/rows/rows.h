// Kernels that need a whole row, for CPU devices. The .inc files are included for each DTYPE.
#include "../../common/elements/formulas.h"
#include "../../common/gpu_compat.h"
#include "../../common/packs.h"
#include "../dynamic_dtype.h"
#include "../packs.h"

#define BODY "../cpu_devices/rows/row_kernels.inc"
#include "../../common/for_each_dtype.h"

// rms_norm of 16-bit floats with a weight of float32.
#define DTYPE f16
#define WEIGHT f32
#define RMS_NORM cpu_rms_norm_f16_weight_f32
#include "rms_norm.inc"
#undef DTYPE

#define DTYPE bf16
#define WEIGHT f32
#define RMS_NORM cpu_rms_norm_bf16_weight_f32
#include "rms_norm.inc"
#undef DTYPE
