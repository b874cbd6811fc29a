// Element-wise kernels for CPU devices. The .inc files are included for each DTYPE.
#include "../../common/dense_copy.inc"
#include "../../common/dynamic_dtype.h"
#include "../../common/formulas.h"
#include "../../common/gpu_compat.h"
#include "../../common/packs.h"
#include "../../common/residual.inc"
#include "../../common/tensors.inc"
#include "../packs.h"

GELU_ERF_FUNCTION(gelu_erf8, float8)

#define BODY "../cpu_devices/elements/elements.inc"
#include "../../common/for_each_dtype.h"
