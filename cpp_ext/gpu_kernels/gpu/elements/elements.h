// Element-wise kernels. The .inc files are included for each DTYPE.
#include "../../common/dynamic_dtype.h"
#include "../../common/elements/dense_copy.inc"
#include "../../common/elements/formulas.h"
#include "../../common/elements/tensors.inc"
#include "../../common/gpu_compat.h"
#include "../../common/packs.h"
#include "../../common/rows/residual.inc"

#define BODY "../gpu/elements/elements.inc"
#include "../../common/for_each_dtype.h"
