// Mixers with a recurrent state.
#include "../../common/formulas.h"
#include "../../common/gpu_compat.h"
#include "../../common/recurrent.inc"
