// The AVX-512 kernels as a separate object, for a build that compiles its files in parallel, each with
// -DAIRLLM_SETS_APART.
#include "region.h"

#ifdef AIRLLM_X86
#include "avx512.inl"
#endif
