// A layer's experts: see gpu/experts/experts.h. Formats that linear.h reads as vectors have kernels of
// their own here.
#ifdef EXPERT_FORMAT
#define UNPACKING_ALONE
#include "../../common/experts/linear_experts.inc"
#include "../linear/linear.h"
#if JOIN(IS_VECTOR, EXPERT_FORMAT)
#define FORMAT EXPERT_FORMAT
#include "linear_experts.inc"
#endif
#else
#include "choice.h"
#include "norm_route.inc"
// These make the choice.
#include "../../common/experts/routing.inc"
#endif
