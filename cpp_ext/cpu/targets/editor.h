// What a kernel file is compiled for where nothing has chosen an instruction set: where an editor or a tool
// reads it alone.
#pragma once
#include "region.h"

#define ISA alone
#define LANES 4
#define VECTORS 16
