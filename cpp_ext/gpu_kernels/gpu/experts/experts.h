// A layer's experts: the router, their choice, and the sum of their results; with EXPERT_FORMAT, the products
// with weights of that format instead. OpenCL compiles a format when it is first needed.
#ifdef EXPERT_FORMAT
#define UNPACKING_ALONE
#include "../../common/experts/linear_experts.inc"
#else
#include "choice.h"
#include "norm_route.inc"
// These make the choice.
#include "../../common/experts/routing.inc"
#endif
