// Attention for CPU devices. The .inc files are included for each DTYPE of k and v.
#include "../common/attention.h"
#include "../common/dynamic_dtype.h"
#include "../common/gpu_compat.h"
#include "../common/packs.h"
#include "packs.h"

#define BODY "../cpu_devices/attention.inc"
#include "../common/for_each_dtype.h"
