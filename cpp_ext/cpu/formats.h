// The formats in which weights are stored: plain floats, and ggml's blocks of quantized values. Airllm's
// formats.py has the same table, with the meaning of each block's bytes.
#pragma once
#include <cstdint>

namespace cpu {

enum Format : int {
  kF32,
  kF16,
  kBF16,  // from here back: in the order of DType
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kFormats
};

// `values` neighbours along a row are stored in `bytes`.
struct Block {
  const char* name;
  int values, bytes;
};

constexpr Block kBlocks[kFormats] = {
    {"f32", 1, 4},      {"f16", 1, 2},      {"bf16", 1, 2},     {"q8_0", 32, 34},   {"q4_0", 32, 18},
    {"q4_1", 32, 20},   {"q5_0", 32, 22},   {"q5_1", 32, 24},   {"q2_k", 256, 84},  {"q3_k", 256, 110},
    {"q4_k", 256, 144}, {"q5_k", 256, 176}, {"q6_k", 256, 210}, {"iq4_nl", 32, 18},
};

}  // namespace cpu
