// Products with stored weights, FORMAT's, and what unpacks them, for CPU devices: the same kernels, local
// size 1.
#include "any.h"
#include "formats.h"
#include "gpu_compat.h"
#include "linear_of.h"
#include "packs.h"
#include "reduce.h"

#define DTYPE f32
#define FORMAT f32
#include "embedding.inc"
#include "linear.inc"
#undef DTYPE
#undef FORMAT

#define DTYPE f16
#define FORMAT f16
#include "embedding.inc"
#include "linear.inc"
#undef DTYPE
#undef FORMAT

#define DTYPE bf16
#define FORMAT bf16
#include "embedding.inc"
#include "linear.inc"
#undef DTYPE
#undef FORMAT

#define FORMAT q8_0
#include "dequantize.inc"
#include "linear.inc"
#undef FORMAT

#define FORMAT q4_0
#include "dequantize.inc"
#include "linear.inc"
#undef FORMAT

#define FORMAT q4_1
#include "dequantize.inc"
#include "linear.inc"
#undef FORMAT

#define FORMAT q5_0
#include "dequantize.inc"
#include "linear.inc"
#undef FORMAT

#define FORMAT q5_1
#include "dequantize.inc"
#include "linear.inc"
#undef FORMAT

#define FORMAT q2_k
#include "dequantize.inc"
#include "linear.inc"
#undef FORMAT

#define FORMAT q3_k
#include "dequantize.inc"
#include "linear.inc"
#undef FORMAT

#define FORMAT q4_k
#include "dequantize.inc"
#include "linear.inc"
#undef FORMAT

#define FORMAT q5_k
#include "dequantize.inc"
#include "linear.inc"
#undef FORMAT

#define FORMAT q6_k
#include "dequantize.inc"
#include "linear.inc"
#undef FORMAT

#define FORMAT iq4_nl
#include "dequantize.inc"
#include "linear.inc"
#undef FORMAT
