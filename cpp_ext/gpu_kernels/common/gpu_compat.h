// The common subset of OpenCL C 1.2, CUDA C++ and HIP in which the kernels are written.
// OpenCL has no C++ and CUDA has no address spaces, so every pointer names its space and there are no
// templates.
#ifndef AIRLLM_GPU_COMPAT_H
#define AIRLLM_GPU_COMPAT_H

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)

// clang -x cl without a runtime defines only the first macro.
#if defined(__OPENCL_C_VERSION__) || defined(__OPENCL_VERSION__)

#define KERNEL __kernel
#define KERNEL_OF(group) __kernel __attribute__((reqd_work_group_size(group, 1, 1)))
#define GLOBAL __global
#define LOCAL_PTR __local
#define LOCAL_DECL __local
#define CONSTANT __constant
// Always inlined: if all calls of a function pass the same local array, clang puts the array's name into the
// function, and PoCL then takes it for an array that all work-groups share.
#define DEVFN static inline __attribute__((always_inline))
#define RESTRICT restrict
#define UNROLL_4  // clang warns if it cannot unroll

#ifdef ONE_WORK_ITEM  // in a work-group: kernels for CPU devices
#define BARRIER()
#define GLOBAL_BARRIER()
#define LID 0
#define LSIZE 1
#else
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define GLOBAL_BARRIER() barrier(CLK_GLOBAL_MEM_FENCE)  // orders what a work-group wrote to global memory
#define LID ((int)get_local_id(0))
#define LSIZE ((int)get_local_size(0))
#endif
#define GRP ((U64)get_group_id(0))
#define GROUPS ((U64)get_num_groups(0))
#define FLOAT4(x, y, z, w) ((float4)((x), (y), (z), (w)))
#define UINT4(x, y, z, w) ((uint4)((x), (y), (z), (w)))
#define UINT2(x, y) ((uint2)((x), (y)))
#define AS_FLOAT(u) as_float(u)
#define AS_UINT(f) as_uint(f)
#define ADDRESS(p) ((size_t)(p))
#define EXP(v) exp(v)
#define LOG1P(v) log1p(v)
#define SQRT(v) sqrt(v)
#define FMAX(a, b) fmax(a, b)
#define FMIN(a, b) fmin(a, b)
#define FABS(v) fabs(v)
#define TANH(v) tanh(v)
#define FMA(a, b, c) fma(a, b, c)
#define MUL_ROUNDED(a, b) ((a) * (b))  // with FP_CONTRACT OFF
#define ADD_ROUNDED(a, b) ((a) + (b))
#define ISNAN(v) isnan(v)
#define LARGEST_FLOAT FLT_MAX
typedef half F16;
typedef uchar U8;
typedef ushort U16;
typedef uint U32;
typedef long I64;
typedef ulong U64;

#else  // CUDA C++ or HIP, compiled by a compiler driver or at run time

#if defined(__HIPCC__) && !defined(__HIPCC_RTC__)
#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>
#elif !defined(__HIPCC_RTC__) && !defined(__CUDACC_RTC__)
#include <cuda_fp16.h>
#endif

#define KERNEL extern "C" __global__
#define KERNEL_OF(group) extern "C" __global__ __launch_bounds__(group, 2)
#define GLOBAL
#define LOCAL_PTR
#define LOCAL_DECL __shared__
#define CONSTANT static __device__ const
#define DEVFN static __device__ __forceinline__
#define RESTRICT __restrict__
#define UNROLL_4 _Pragma("unroll 4")
#define BARRIER() __syncthreads()
#define GLOBAL_BARRIER() __syncthreads()
#define LID ((int)threadIdx.x)
#define LSIZE ((int)blockDim.x)
#define GRP ((U64)blockIdx.x)
#define GROUPS ((U64)gridDim.x)
#define FLOAT4(x, y, z, w) make_float4((x), (y), (z), (w))
#define UINT4(x, y, z, w) make_uint4((x), (y), (z), (w))
#define UINT2(x, y) make_uint2((x), (y))
#define AS_FLOAT(u) __uint_as_float(u)
#define AS_UINT(f) __float_as_uint(f)
#define ADDRESS(p) ((U64)(p))
#define EXP(v) expf(v)
#define LOG1P(v) log1pf(v)
#define SQRT(v) sqrtf(v)
#define FMAX(a, b) fmaxf(a, b)
#define FMIN(a, b) fminf(a, b)
#define FABS(v) fabsf(v)
#define TANH(v) tanhf(v)
#define FMA(a, b, c) fmaf(a, b, c)
#define MUL_ROUNDED(a, b) __fmul_rn(a, b)
#define ADD_ROUNDED(a, b) __fadd_rn(a, b)
#define ISNAN(v) isnan(v)
#define LARGEST_FLOAT 3.402823466e+38f
#if defined(__HIPCC__) || defined(__HIPCC_RTC__)
#define LANES ((int)warpSize)  // 64 on CDNA, 32 on RDNA
#define SHUFFLE_XOR(v, lane) __shfl_xor((v), (lane))
#else
#define LANES 32
#define SHUFFLE_XOR(v, lane) __shfl_xor_sync(0xffffffffu, (v), (lane))
#endif
typedef unsigned char U8;
typedef unsigned short U16;
#if defined(__CUDACC_RTC__)
typedef U16 F16;  // NVRTC has no header of halves, unless a toolkit is installed
#else
typedef __half F16;
#endif
typedef unsigned int U32;
typedef long long I64;
typedef unsigned long long U64;

#endif
#endif
