// Every kernel in the form for OpenCL's CPU devices, in the three dtypes: a work-group is one work-item
// (local size 1) that walks a chunk of elements, a row or a panel with vectors of 8. A tree in local memory
// is 5 times slower there.
#include "cpu_packs.h"
#include "formulas.h"
#include "gpu_compat.h"
#include "packs.h"
#include "sums.h"

#define DTYPE f32
#include "cpu_dtype.inc"
#undef DTYPE

#define DTYPE f16
#include "cpu_dtype.inc"
#define WEIGHT f32
#define RMS_NORM cpu_rms_norm_f16_weight_f32
#include "cpu_rms_norm.inc"
#undef DTYPE

#define DTYPE bf16
#include "cpu_dtype.inc"
#define WEIGHT f32
#define RMS_NORM cpu_rms_norm_bf16_weight_f32
#include "cpu_rms_norm.inc"
#undef DTYPE
