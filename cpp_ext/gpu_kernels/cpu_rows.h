// Kernels that need the whole of a row, for CPU devices. DTYPE is the stored type of those in the list.
#include "cpu_any.h"
#include "cpu_packs.h"
#include "formulas.h"
#include "gpu_compat.h"
#include "packs.h"

#define DTYPE f32
#include "cpu_rows_of.inc"
#undef DTYPE

#define DTYPE f16
#include "cpu_rows_of.inc"
#define WEIGHT f32
#define RMS_NORM cpu_rms_norm_f16_weight_f32
#include "cpu_rms_norm.inc"
#undef DTYPE

#define DTYPE bf16
#include "cpu_rows_of.inc"
#define WEIGHT f32
#define RMS_NORM cpu_rms_norm_bf16_weight_f32
#include "cpu_rms_norm.inc"
#undef DTYPE
