// Mixers with a recurrent state.
#include "../../common/elements/formulas.h"
#include "../../common/gpu_compat.h"
#include "../../common/recurrent/recurrent.inc"
