// Attention for CPU devices. The .inc files are included for each DTYPE of k and v, and for q8_0, whose
// elements are bytes.
#include "../../common/attention/attention.h"
#include "../../common/dynamic_dtype.h"
#include "../../common/formats/q8_0.h"
#include "../../common/gpu_compat.h"
#include "../../common/packs.h"
#include "../packs.h"

#define BODY "../cpu_devices/attention/attention_kernels.inc"
#include "../../common/for_each_dtype.h"

#define DTYPE q8_0
#include "attention_blocks.inc"
#include "attention_row.inc"
#undef DTYPE
