// Matrix products for CPU devices. DTYPE is what the .inc files are instantiated for.
#include "any.h"
#include "cpu_packs.h"
#include "gpu_compat.h"
#include "packs.h"
#include "sums.h"

#define DTYPE f32
#include "cpu_matmul.inc"
#include "cpu_matmul_row.inc"
#include "cpu_weighted_sum_rows.inc"
#undef DTYPE

#define DTYPE f16
#include "cpu_matmul.inc"
#include "cpu_matmul_row.inc"
#include "cpu_weighted_sum_rows.inc"
#undef DTYPE

#define DTYPE bf16
#include "cpu_matmul.inc"
#include "cpu_matmul_row.inc"
#include "cpu_weighted_sum_rows.inc"
#undef DTYPE
