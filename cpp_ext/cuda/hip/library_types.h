// See cuda_runtime_api.h. The numbers are CUDA's; nothing reads them.
#pragma once

enum hipDataTypeOfCublas { CUDA_R_32F = 0, CUDA_R_16F = 2, CUDA_R_16BF = 14 };
