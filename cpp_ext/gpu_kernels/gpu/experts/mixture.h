// The experts of a layer in two launches.
#define UNPACKING_ALONE
#include "../../common/formats/formats.h"
#include "choice.h"

#define BODY "../../common/experts/mixture.inc"
#include "../linear/several_formats.inc"
