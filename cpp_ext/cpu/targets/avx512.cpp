// The kernels for AVX-512 as an object of their own, for a build that compiles its files at the same time,
// each with -DAIRLLM_SETS_APART.
#include "region.h"

#ifdef AIRLLM_X86
#include "avx512.inl"
#endif
