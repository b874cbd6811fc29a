// Matrix products. DTYPE is what the .inc files are instantiated for.
#include "../common/dynamic_dtype.h"
#include "../common/gpu_compat.h"
#include "../common/packs.h"
#include "../common/summation.h"

#define DTYPE f32
#include "matmul_quads.inc"
#include "matmul_row.inc"
#include "weighted_sum_rows.inc"

#define QUADS 1
#define TILE_NAME tile64
#include "matmul_tile.inc"

#define QUADS 2
#define TILE_NAME tile128
#include "matmul_tile.inc"
#undef DTYPE

#define DTYPE f16
#include "matmul_quads.inc"
#include "matmul_row.inc"
#include "weighted_sum_rows.inc"

#define QUADS 1
#define TILE_NAME tile64
#include "matmul_tile.inc"

#define QUADS 2
#define TILE_NAME tile128
#include "matmul_tile.inc"
#undef DTYPE

#define DTYPE bf16
#include "matmul_quads.inc"
#include "matmul_row.inc"
#include "weighted_sum_rows.inc"

#define QUADS 1
#define TILE_NAME tile64
#include "matmul_tile.inc"

#define QUADS 2
#define TILE_NAME tile128
#include "matmul_tile.inc"
#undef DTYPE
