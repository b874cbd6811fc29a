// Includes BODY: see gpu/two_formats.h. Formats that linear.h reads as vectors have kernels of their own
// here.
#ifndef EXPERT_FORMAT  // so that an editor can read this file
#define EXPERT_FORMAT f32
#define SHARED_FORMAT f32
#endif
#ifndef UP_ALONE
#define UP_FORMAT EXPERT_FORMAT
#endif
#define UNPACKING_ALONE
#include "linear.h"

// A work-group takes adjacent tasks, so that each core reads one stream.
#define TASKS_OF(i, of, all) \
  for (U64 task = i * ((all + of - 1) / of); task < min(all, (i + 1) * ((all + of - 1) / of)); ++task)

#if JOIN(IS_VECTOR, EXPERT_FORMAT) && JOIN(IS_VECTOR, SHARED_FORMAT) && JOIN(IS_VECTOR, UP_FORMAT)
#define FORMAT EXPERT_FORMAT
#include "dot_pair.inc"
#undef FORMAT
#ifdef SHARED_APART
#define FORMAT SHARED_FORMAT
#include "dot_pair.inc"
#undef FORMAT
#endif
#ifdef UP_APART
#define FORMAT UP_FORMAT
#include "dot_pair.inc"
#undef FORMAT
#endif
#undef MOST_ROWS
#define DOT_PAIR(format) JOIN(cpu_dot_pair, format)
#define NAMED(name) JOIN(cpu, name)
#include BODY
#undef DOT_PAIR
#undef NAMED
#endif

// Rows of floats may be no whole vectors.
#if !(JOIN(IS_VECTOR, EXPERT_FORMAT) && JOIN(IS_VECTOR, SHARED_FORMAT) && JOIN(IS_VECTOR, UP_FORMAT)) || \
    JOIN(IS_FLOAT, EXPERT_FORMAT) || JOIN(IS_FLOAT, SHARED_FORMAT) || JOIN(IS_FLOAT, UP_FORMAT)
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
#include BODY
#endif
