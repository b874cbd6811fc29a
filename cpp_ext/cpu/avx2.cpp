// The kernels for AVX2 as an object of their own, for a build that compiles its files at the same time, each
// with -DAIRLLM_SETS_APART.
#include "target.h"

#ifdef AIRLLM_X86
#include "sets_avx2.inl"
#endif
