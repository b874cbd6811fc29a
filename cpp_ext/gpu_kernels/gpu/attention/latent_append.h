// The queries of latent attention, by the matrix of each head and, in another format, that of the queries.
#define UNPACKING_ALONE
#include "../../common/formats/formats.h"
#include "../../common/reduce.h"
#include "../linear/normed_row.inc"

#define BODY "../../common/attention/latent_append.inc"
#include "../linear/several_formats.inc"
