// The experts of a layer in two launches.
#include "choice.h"

#define BODY "../common/mixture.inc"
#include "two_formats.h"
