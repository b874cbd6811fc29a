// Element-wise kernels. The .inc files are included for each DTYPE.
#include "../../common/dense_copy.inc"
#include "../../common/dynamic_dtype.h"
#include "../../common/formulas.h"
#include "../../common/gpu_compat.h"
#include "../../common/packs.h"
#include "../../common/residual.inc"
#include "../../common/tensors.inc"

#define BODY "../gpu/elements/elements.inc"
#include "../../common/for_each_dtype.h"
