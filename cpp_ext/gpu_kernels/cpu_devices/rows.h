// Kernels that need the whole of a row, for CPU devices. DTYPE is what the .inc files are instantiated for.
#include "../common/formulas.h"
#include "../common/gpu_compat.h"
#include "../common/packs.h"
#include "dynamic_dtype.h"
#include "packs.h"

#define DTYPE f32
#define WEIGHT DTYPE
#define RMS_NORM NAME(cpu_rms_norm)
#include "add_rms_norm.inc"
#include "layer_norm.inc"
#include "masked_softmax.inc"
#include "rms_norm.inc"
#include "softmax.inc"
#undef DTYPE

#define DTYPE f16
#define WEIGHT DTYPE
#define RMS_NORM NAME(cpu_rms_norm)
#include "add_rms_norm.inc"
#include "layer_norm.inc"
#include "masked_softmax.inc"
#include "rms_norm.inc"
#include "softmax.inc"
#define WEIGHT f32
#define RMS_NORM cpu_rms_norm_f16_weight_f32
#include "rms_norm.inc"
#undef DTYPE

#define DTYPE bf16
#define WEIGHT DTYPE
#define RMS_NORM NAME(cpu_rms_norm)
#include "add_rms_norm.inc"
#include "layer_norm.inc"
#include "masked_softmax.inc"
#include "rms_norm.inc"
#include "softmax.inc"
#define WEIGHT f32
#define RMS_NORM cpu_rms_norm_bf16_weight_f32
#include "rms_norm.inc"
#undef DTYPE
