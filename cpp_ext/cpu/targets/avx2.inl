// The kernels for AVX2.
#include "region.h"

BEGIN_TARGET("avx2,fma,f16c")
#define ISA avx2
#include "avx2_instructions.inl"
#include "kernels.inl"

#ifdef AIRLLM_TEST_TARGETS  // the 16-lane source on 8-lane instructions: for CPUs without AVX-512
#define ISA avx2_16lanes
#define LANES 16
#define VECTORS 16
#include "kernels.inl"
#endif
END_TARGET
