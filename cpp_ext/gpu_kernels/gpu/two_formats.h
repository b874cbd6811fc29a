// Includes BODY, kernels that read weights of EXPERT_FORMAT, of SHARED_FORMAT, and, if UP_ALONE is defined,
// of UP_FORMAT; SHARED_APART and UP_APART are defined if these are others than those before. OpenCL compiles
// formats when they are first needed together.
#ifndef EXPERT_FORMAT  // so that an editor can read this file
#define EXPERT_FORMAT f32
#define SHARED_FORMAT f32
#endif
#define UNPACKING_ALONE
#include "../common/formats.h"
#include "../common/formulas.h"

#define FORMAT EXPERT_FORMAT
#include "../common/dot_pair.inc"
#undef FORMAT
#ifdef SHARED_APART
#define FORMAT SHARED_FORMAT
#include "../common/dot_pair.inc"
#undef FORMAT
#endif
#ifdef UP_APART
#define FORMAT UP_FORMAT
#include "../common/dot_pair.inc"
#undef FORMAT
#endif

#define DOT_PAIR(format) JOIN(dot_pair, format)
#define NAMED(name) name
#define TASKS_OF(i, of, all) for (U64 task = i; task < all; task += of)
#include BODY
