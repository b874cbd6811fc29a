// Element-wise kernels. The .inc files are included for each DTYPE.
#include "../../common/elements/dense_copy.inc"
#include "../../common/dynamic_dtype.h"
#include "../../common/elements/formulas.h"
#include "../../common/gpu_compat.h"
#include "../../common/packs.h"
#include "../../common/rows/residual.inc"
#include "../../common/elements/tensors.inc"

#define BODY "../gpu/elements/elements.inc"
#include "../../common/for_each_dtype.h"
