// Rotary position embedding for CPU devices. The .inc files are included for each DTYPE.
#include "../../common/gpu_compat.h"
#include "../../common/packs.h"
#include "../dynamic_dtype.h"
#include "../packs.h"

#define BODY "../cpu_devices/rows/apply_rope.inc"
#include "../../common/for_each_dtype.h"
