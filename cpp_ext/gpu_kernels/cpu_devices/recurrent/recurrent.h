// Mixers with a recurrent state, for CPU devices: a work-item is a work-group.
#include "../../common/elements/formulas.h"
#include "../../common/gpu_compat.h"
#include "../../common/recurrent/recurrent.inc"
