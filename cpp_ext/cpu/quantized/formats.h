// The formats in which weights are stored: plain floats, and ggml's blocks of quantized values.
#pragma once
#include <cstdint>

namespace cpu {

// A row for each block format: its name here and in files, ggml's number for it, values in a block, bytes in
// a block, and whether there is a quantizer. A struct of that name in blocks/blocks_32.inl, blocks_256.inl,
// blocks_codes.inl or blocks_codebook.inl defines how a block is unpacked; everything else is derived from
// this table.
// airllm/formats/ has the same table and says what each byte means.
#define AIRLLM_BLOCK_FORMATS(FORMAT)             \
  FORMAT(Q8_0, "q8_0", 8, 32, 34, true)          \
  FORMAT(Q4_0, "q4_0", 2, 32, 18, true)          \
  FORMAT(Q4_1, "q4_1", 3, 32, 20, true)          \
  FORMAT(Q5_0, "q5_0", 6, 32, 22, true)          \
  FORMAT(Q5_1, "q5_1", 7, 32, 24, true)          \
  FORMAT(Q2_K, "q2_k", 10, 256, 84, true)        \
  FORMAT(Q3_K, "q3_k", 11, 256, 110, true)       \
  FORMAT(Q4_K, "q4_k", 12, 256, 144, true)       \
  FORMAT(Q5_K, "q5_k", 13, 256, 176, true)       \
  FORMAT(Q6_K, "q6_k", 14, 256, 210, true)       \
  FORMAT(IQ4_NL, "iq4_nl", 20, 32, 18, true)     \
  FORMAT(IQ4_XS, "iq4_xs", 23, 256, 136, true)   \
  FORMAT(MXFP4, "mxfp4", 39, 32, 17, true)       \
  FORMAT(IQ3_XXS, "iq3_xxs", 18, 256, 98, false) \
  FORMAT(IQ3_S, "iq3_s", 21, 256, 110, false)    \
  FORMAT(IQ2_XXS, "iq2_xxs", 16, 256, 66, false) \
  FORMAT(IQ2_XS, "iq2_xs", 17, 256, 74, false)   \
  FORMAT(IQ2_S, "iq2_s", 22, 256, 82, false)     \
  FORMAT(IQ1_S, "iq1_s", 19, 256, 50, false)     \
  FORMAT(IQ1_M, "iq1_m", 29, 256, 56, false)     \
  FORMAT(TQ1_0, "tq1_0", 34, 256, 54, false)     \
  FORMAT(TQ2_0, "tq2_0", 35, 256, 66, false)

enum Format : int {
  kF32,
  kF16,
  kBF16,  // up to here: in the order of DType
#define FORMAT(name, ...) k##name,
  AIRLLM_BLOCK_FORMATS(FORMAT)
#undef FORMAT
      kFormats
};

// `values` consecutive values of a row are stored in `bytes` bytes.
struct Block {
  const char* name;
  int ggml_type, values, bytes;
  bool has_quantizer;
};

constexpr Block kBlocks[kFormats] = {{"f32", 0, 1, 4, false},
                                     {"f16", 1, 1, 2, false},
                                     {"bf16", 30, 1, 2, false},
#define FORMAT(name, ...) {__VA_ARGS__},
                                     AIRLLM_BLOCK_FORMATS(FORMAT)
#undef FORMAT
};

constexpr bool is_quantized(Format format) { return format > kBF16; }

}  // namespace cpu
