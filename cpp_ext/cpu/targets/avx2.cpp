// The AVX2 kernels as a separate object, for a build that compiles its files in parallel, each with
// -DAIRLLM_SETS_APART.
#include "region.h"

#ifdef AIRLLM_X86
#include "avx2.inl"
#endif
