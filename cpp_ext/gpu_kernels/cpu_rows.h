// Kernels that need the whole of a row, for CPU devices. DTYPE is what the .inc files are instantiated for.
#include "cpu_any.h"
#include "cpu_packs.h"
#include "formulas.h"
#include "gpu_compat.h"
#include "packs.h"

#define DTYPE f32
#define WEIGHT DTYPE
#define RMS_NORM NAME(cpu_rms_norm)
#include "cpu_add_rms_norm.inc"
#include "cpu_layer_norm.inc"
#include "cpu_masked_softmax.inc"
#include "cpu_rms_norm.inc"
#include "cpu_softmax.inc"
#undef DTYPE

#define DTYPE f16
#define WEIGHT DTYPE
#define RMS_NORM NAME(cpu_rms_norm)
#include "cpu_add_rms_norm.inc"
#include "cpu_layer_norm.inc"
#include "cpu_masked_softmax.inc"
#include "cpu_rms_norm.inc"
#include "cpu_softmax.inc"
#define WEIGHT f32
#define RMS_NORM cpu_rms_norm_f16_weight_f32
#include "cpu_rms_norm.inc"
#undef DTYPE

#define DTYPE bf16
#define WEIGHT DTYPE
#define RMS_NORM NAME(cpu_rms_norm)
#include "cpu_add_rms_norm.inc"
#include "cpu_layer_norm.inc"
#include "cpu_masked_softmax.inc"
#include "cpu_rms_norm.inc"
#include "cpu_softmax.inc"
#define WEIGHT f32
#define RMS_NORM cpu_rms_norm_bf16_weight_f32
#include "cpu_rms_norm.inc"
#undef DTYPE
