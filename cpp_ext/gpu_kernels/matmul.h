// Matrix products. DTYPE is what the .inc files are instantiated for.
#include "any.h"
#include "gpu_compat.h"
#include "packs.h"
#include "sums.h"

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
