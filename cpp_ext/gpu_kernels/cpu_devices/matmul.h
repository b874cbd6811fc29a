// Matrix products for CPU devices. DTYPE is what the .inc files are instantiated for.
#include "../common/dynamic_dtype.h"
#include "../common/gpu_compat.h"
#include "../common/packs.h"
#include "../common/summation.h"
#include "packs.h"

#define DTYPE f32
#include "matmul.inc"
#include "matmul_row.inc"
#include "weighted_sum_rows.inc"
#undef DTYPE

#define DTYPE f16
#include "matmul.inc"
#include "matmul_row.inc"
#include "weighted_sum_rows.inc"
#undef DTYPE

#define DTYPE bf16
#include "matmul.inc"
#include "matmul_row.inc"
#include "weighted_sum_rows.inc"
#undef DTYPE
