// Matrix products for CPU devices. The .inc files are included for each DTYPE.
#include "../../common/dynamic_dtype.h"
#include "../../common/gpu_compat.h"
#include "../../common/packs.h"
#include "../../common/summation.h"
#include "../packs.h"

#define BODY "../cpu_devices/matmul/matmul_kernels.inc"
#include "../../common/for_each_dtype.h"
