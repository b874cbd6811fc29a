// The experts of a layer in two launches: see gpu/experts/mixture.h.
#define UNPACKING_ALONE
#include "../../common/formats.h"
#include "choice.h"

#define BODY "../../common/mixture.inc"
#include "../linear/several_formats.inc"
