// The experts of a layer in two launches: see gpu/experts/mixture.h.
#define UNPACKING_ALONE
#include "../../common/formats/formats.h"
#include "choice.h"

#define BODY "../../common/experts/mixture.inc"
#include "../linear/several_formats.inc"
