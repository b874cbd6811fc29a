// The instruction set of a kernel file that is compiled alone, by an editor or a tool.
#pragma once
#include "region.h"

#define ISA alone
#define LANES 4
#define VECTORS 16
