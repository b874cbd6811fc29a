// Element-wise kernels for CPU devices. The .inc files are included for each DTYPE.
#include "../../common/dynamic_dtype.h"
#include "../../common/elements/dense_copy.inc"
#include "../../common/elements/formulas.h"
#include "../../common/elements/tensors.inc"
#include "../../common/gpu_compat.h"
#include "../../common/packs.h"
#include "../../common/rows/residual.inc"
#include "../packs.h"

GELU_ERF_FUNCTION(gelu_erf8, float8)

#define BODY "../cpu_devices/elements/elements.inc"
#include "../../common/for_each_dtype.h"
