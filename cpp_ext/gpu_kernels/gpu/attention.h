// Attention. The .inc files are included for each DTYPE of k and v.
#include "../common/attention.h"
#include "../common/dynamic_dtype.h"
#include "../common/gpu_compat.h"
#include "../common/packs.h"
#include "../common/reduce.h"

#define BODY "../gpu/attention_kernels.inc"
#include "../common/for_each_dtype.h"
#include "attention_combine.inc"
