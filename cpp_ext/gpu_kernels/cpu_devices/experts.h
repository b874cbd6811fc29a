// A layer's experts: see gpu/experts.h. Formats that linear.h reads as vectors have kernels of their own
// here.
#ifdef EXPERT_FORMAT
#define UNPACKING_ALONE
#include "../common/linear_experts.inc"
#include "linear.h"
#if JOIN(IS_VECTOR, EXPERT_FORMAT)
#define FORMAT EXPERT_FORMAT
#include "linear_experts.inc"
#endif
#else
#include "order_best.h"
#include "../common/routing.inc"
#include "norm_route.inc"
#endif
