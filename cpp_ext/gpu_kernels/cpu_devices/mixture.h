// The experts of a layer in two launches: see gpu/mixture.h.
#include "choice.h"

#define BODY "../common/mixture.inc"
#include "two_formats.h"
