// The experts of a layer in two launches: see gpu/mixture.h. Formats that linear.h reads as vectors have
// kernels of their own here.
#define UNPACKING_ALONE
#include "linear.h"
#include "order_best.h"
#include "../common/choice.h"

#if JOIN(IS_VECTOR, EXPERT_FORMAT) && JOIN(IS_VECTOR, SHARED_FORMAT)
#define FORMAT EXPERT_FORMAT
#include "dot_rows.inc"
#include "dot_pair.inc"
#undef FORMAT
#ifdef SHARED_APART
#define FORMAT SHARED_FORMAT
#include "dot_rows.inc"
#include "dot_pair.inc"
#undef FORMAT
#endif
#undef MOST_ROWS
#define DOT_PAIR(format) JOIN(cpu_dot_pair, format)
#define MIXTURE(name) JOIN(cpu, name)
#define OF_UP ADJACENT  // so that each core reads one stream
#define OF_DOWN ADJACENT
#include "../common/mixture.inc"
#undef DOT_PAIR
#undef MIXTURE
#undef OF_UP
#undef OF_DOWN
#endif

// Rows of floats may be no whole vectors.
#if !(JOIN(IS_VECTOR, EXPERT_FORMAT) && JOIN(IS_VECTOR, SHARED_FORMAT)) || JOIN(IS_FLOAT, EXPERT_FORMAT) || \
    JOIN(IS_FLOAT, SHARED_FORMAT)
#define FORMAT EXPERT_FORMAT
#include "../common/dot_pair.inc"
#undef FORMAT
#ifdef SHARED_APART
#define FORMAT SHARED_FORMAT
#include "../common/dot_pair.inc"
#undef FORMAT
#endif
#define DOT_PAIR(format) JOIN(dot_pair, format)
#define MIXTURE(name) name
#define OF_UP EACH_NTH  // a sixth faster than adjacent ones; OF_DOWN is a sixth slower so
#define OF_DOWN ADJACENT
#include "../common/mixture.inc"
#endif
