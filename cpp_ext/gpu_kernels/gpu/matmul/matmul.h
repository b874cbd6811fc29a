// Matrix products. The .inc files are included for each DTYPE.
#include "../../common/dynamic_dtype.h"
#include "../../common/gpu_compat.h"
#include "../../common/packs.h"
#include "../../common/summation.h"

#define BODY "../gpu/matmul/matmul_kernels.inc"
#include "../../common/for_each_dtype.h"
