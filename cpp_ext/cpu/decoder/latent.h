// Latent attention (DecoderLayer::latent) around the attention step itself: queries to what tokens keep are
// made before it, and the heads' values after it. Threads share the heads.
// airllm/engine/layers/latent_attention.py is the definition.
#pragma once
#include <algorithm>

#include "cached_attention.h"
#include "products.h"

namespace cpu {

// What it reads and writes, of all rows: `projected` are the products with the matrix of queries, or of their
// latents, and `kept` those with that of what tokens keep; `made`: queries of latents; `queries` (rows,
// heads, row) go to the attention step, `attended` (rows, heads, kv_rank) comes from it; `values` (rows,
// heads, value_dim) are the result. `own`: memory of the thread.
struct LatentBuffers {
  const float *projected, *kept;
  float *made, *queries;
  const float* attended;
  float *values, *own;
};

class __attribute__((visibility("hidden"))) LatentAttention {
 public:
  LatentAttention(const Kernels& kernels, const DecoderCall& call, DecoderProducts& products,
                  CachedAttention& attention, const LatentBuffers& at)
      : kernels_(kernels), call_(call), products_(products), attention_(attention), at_(at) {}

  // The queries of some heads. The thread with the first head also writes what the new tokens keep.
  void query(const DecoderLayer& layer, Columns heads) {
    if (heads.begin >= heads.end) return;
    const Latent& of = layer.latent;
    const float* const from = of.q_a.n ? make_queries(layer, heads) : at_.projected;
    for (int64_t head = heads.begin; head < heads.end; ++head) absorb(layer, from, head);
    if (heads.begin == 0)
      for (int64_t s = 0; s < call_.sequence_count; ++s)
        attention_.keep(layer, call_.sequences[s], at_.kept, at_.own);
  }

  // The values of some heads.
  void value(const DecoderLayer& layer, Columns heads) {
    const Latent& of = layer.latent;
    float *const in = at_.own, *const out = in + call_.rows * of.kv_rank;
    for (int64_t head = heads.begin; head < heads.end; ++head) {
      copy_rows(in, of.kv_rank, at_.attended + head * of.kv_rank, layer.heads * of.kv_rank, of.kv_rank);
      multiply(of.v_b, head, of.value_dim, in, out);
      copy_rows(at_.values + head * of.value_dim, layer.heads * of.value_dim, out, of.value_dim,
                of.value_dim);
    }
  }

 private:
  // Columns of these heads of `made`: products of the normalized latents of queries.
  const float* make_queries(const DecoderLayer& layer, Columns heads) {
    const Latent& of = layer.latent;
    const Rows rows{call_.rows, of.q_a.n, false};
    kernels_.rows.rms_norm[kFloat32][1](at_.own, at_.projected, of.q_norm, rows, kLatentEps);
    products_.of({at_.own, of.q_a.n, call_.rows, true});
    products_.multiply(layer.q, at_.made, {heads.begin * of.query_dim(), heads.end * of.query_dim()});
    return at_.made;
  }

  // The query of a head to what tokens keep.
  void absorb(const DecoderLayer& layer, const float* from, int64_t head) {
    const Latent& of = layer.latent;
    const int64_t width = layer.heads * of.query_dim(), row = layer.head_dim;
    float *const in = at_.own, *const out = in + call_.rows * of.plain;
    from += head * of.query_dim();
    float* const to = at_.queries + head * row;
    copy_rows(in, of.plain, from, width, of.plain);
    multiply(of.k_b, head, of.kv_rank, in, out);
    copy_rows(to, layer.heads * row, out, of.kv_rank, of.kv_rank);
    for (int64_t i = 0; i < call_.rows; ++i) {
      float* const query = to + i * layer.heads * row;
      attention_.turn(layer, i, from + i * width + of.plain, query + of.kv_rank, {1, of.rotated, false});
    }
    if (layer.temperature != 0.f) scale(layer, to);
  }

  void scale(const DecoderLayer& layer, float* queries) const {
    for (int64_t s = 0; s < call_.sequence_count; ++s) {
      const Sequence& sequence = call_.sequences[s];
      for (int64_t i = 0; i < sequence.tokens(); ++i) {
        float* const query = queries + (sequence.start + i) * layer.heads * layer.head_dim;
        scale_values(query, query, layer.head_dim, layer.temperature_at(sequence.length + i));
      }
    }
  }

  // out (rows, n) = in (rows, k) @ weights^T, with the n rows of a head among those of all heads.
  void multiply(const Matrix& all, int64_t head, int64_t n, const float* in, float* out) {
    Matrix own = all;
    own.data += head * n * row_bytes(all.format, all.k);
    own.n = n;
    products_.of({in, all.k, call_.rows, true});
    products_.multiply(own, out, {0, n});
  }

  void copy_rows(float* to, int64_t to_row, const float* from, int64_t from_row, int64_t values) const {
    for (int64_t i = 0; i < call_.rows; ++i) std::copy_n(from + i * from_row, values, to + i * to_row);
  }

  const Kernels& kernels_;
  const DecoderCall& call_;
  DecoderProducts& products_;
  CachedAttention& attention_;
  const LatentBuffers at_;
};

}  // namespace cpu
