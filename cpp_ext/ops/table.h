// The compiled ops, as airllm/tensor_ops.py declares them: each line is the output of `print(OPS[name].text)`
// there, and tests/ops/test_declarations.py compares them. The checks of calls, their messages, defaults and
// help() follow from these lines in the C++ backend (bindings/cpp/call.h), the CUDA backend (cuda/ops/ops.h)
// and the C++ registry (program/checks.h).
#pragma once
#include "declaration.h"

namespace airllm {
namespace [[gnu::visibility("hidden")]] declared {

inline constexpr Declaration kRmsNorm =
    declare("rms_norm(x: '... d', weight: 'd', eps: float = 1e-06) -> '... d'");
inline constexpr Declaration kLayerNorm =
    declare("layer_norm(x: '... d', weight: 'd', bias: 'd' = None, eps: float = 1e-05) -> '... d'");
inline constexpr Declaration kAddRmsNorm = declare(
    "add_rms_norm(x: '... d', residual: '... d', weight: 'd', eps: float = 1e-06) -> ('... d', "
    "'... d')");
inline constexpr Declaration kSilu = declare("silu(x: '...') -> '...'");
inline constexpr Declaration kGelu =
    declare("gelu(x: '...', approximate: Literal['tanh', 'none'] = 'tanh') -> '...'");
inline constexpr Declaration kSwiglu = declare("swiglu(gate: '...', up: '...') -> '...'");
inline constexpr Declaration kGeglu =
    declare("geglu(gate: '...', up: '...', approximate: Literal['tanh', 'none'] = 'tanh') -> '...'");
inline constexpr Declaration kSoftmax =
    declare("softmax(x: '... d', scale: float = 1.0, mask: '... d : mask' = None) -> '... d'");
inline constexpr Declaration kApplyRope = declare(
    "apply_rope(x: '... d', cos: '... r : any float', sin: '... r : any float', "
    "interleaved: bool = False) -> '... d' where 2 r at most d");
inline constexpr Declaration kMatmul = declare("matmul(a: '... m? k', b: '... k n?') -> '... m? n?'");
inline constexpr Declaration kMatmulVec = declare("matmul_vec(w: 'n k : stored', x: 'k') -> 'n'");
inline constexpr Declaration kLinear =
    declare("linear(x: '... k', weight: 'n k : stored', bias: 'n : any float' = None) -> '... n'");
inline constexpr Declaration kAttention = declare(
    "attention(q: '... h t d', k: '... g s d : any float', v: '... g s e : any float', "
    "mask: '... h t s : mask' = None, causal: bool = False, scale: float | None = None, "
    "softcap: Positive | None = None, window: int | None = None, sinks: 'h' = None) -> '... h t e' "
    "where h a multiple of g");
inline constexpr Declaration kAttentionScores =
    declare("attention_scores(query: 'd', keys: 's d : any float', scale: float = 1.0) -> 's'");
inline constexpr Declaration kWeightedSumRows =
    declare("weighted_sum_rows(weights: 's', matrix: 's d : any float') -> 'd'");
inline constexpr Declaration kEmbedding =
    declare("embedding(ids: '... : index of v', table: 'v d : stored') -> '... d'");
inline constexpr Declaration kQuantize = declare("quantize(x: '... k', format: str) -> '... k : quantized'");
inline constexpr Declaration kDequantize = declare("dequantize(q: '... k : quantized') -> '... k'");

}  // namespace declared
}  // namespace airllm
