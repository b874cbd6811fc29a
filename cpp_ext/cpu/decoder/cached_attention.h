// A thread's work on the attention step of a layer: the keys and values of new tokens go to the cache, and
// queries meet the keys there.
#pragma once
#include <cmath>

#include "attention.h"
#include "decoder.h"

namespace cpu {

inline void scale_values(float* to, const float* from, int64_t n, float by) {
  for (int64_t i = 0; i < n; ++i) to[i] = from[i] * by;
}

// What it reads and writes: `q`, `k`, `v` are the products of all rows, `latent_q` queries of latent
// attention; `attended` is the result. `sums` and `done` serve units that several threads share. `rotated`
// and `workspace` are the thread's own.
struct AttentionBuffers {
  const float *q, *k, *v, *latent_q;
  float *attended, *sums;
  std::atomic<int64_t>* done;
  float *rotated, *workspace;
};

class __attribute__((visibility("hidden"))) CachedAttention {
 public:
  CachedAttention(const Kernels& kernels, const DecoderCall& call, const AttentionBuffers& at)
      : kernels_(kernels), call_(call), at_(at) {}

  // The part of a unit: the pieces of keys that this thread has.
  void attend(const DecoderLayer& layer, const UnitPart& part) {
    if (layer.latent.kv_rank) return attend_to_latents(layer, part);
    const Sequence& sequence = *part.sequence;
    const int64_t d = layer.head_dim, group = part.group;
    const int64_t head_bytes = part.kept.capacity * row_bytes(sequence.format, d);
    char* const keys = part.kept.data + part.head * head_bytes;
    char* const values = keys + layer.kv_heads * head_bytes;
    if (!layer.shares) append(layer, part, keys, values);
    const int64_t halves = layer.output_gate ? 2 : 1;
    rotate(layer, sequence, {at_.q, layer.q.n, layer.q_norm, halves * d}, part.head * group, group);
    for (int64_t i = 0; layer.temperature != 0.f && i < sequence.tokens(); ++i) {
      float* const queries = at_.rotated + i * group * d;
      scale_values(queries, queries, group * d, layer.temperature_at(sequence.length + i));
    }
    const int64_t width = layer.heads * d;
    float* const out = at_.attended + sequence.start * width + part.head * group * d;
    const AttentionHead head{reinterpret_cast<const char*>(at_.rotated),
                             keys,
                             values,
                             nullptr,
                             reinterpret_cast<char*>(out),
                             layer.sinks ? layer.sinks + part.head * group : nullptr};
    if (attend(layer, attention_of(layer, part), head, part) && layer.output_gate) gate(layer, part, out);
  }

  // Writes what the new tokens of a sequence keep: `kept` (all rows, row), with latents normalized and keys
  // rotated. `own`: memory for a row.
  void keep(const DecoderLayer& layer, const Sequence& sequence, const float* kept, float* own) {
    const Latent& of = layer.latent;
    const LayerCache to = sequence.of(layer);
    const int64_t bytes = row_bytes(sequence.format, layer.head_dim);
    for (int64_t i = 0; i < sequence.tokens(); ++i) {
      const float* const row = kept + (sequence.start + i) * layer.head_dim;
      kernels_.rows.rms_norm[kFloat32][1](own, row, of.kv_norm, {1, of.kv_rank, false}, kLatentEps);
      turn(layer, sequence.start + i, row + of.kv_rank, own + of.kv_rank, {1, of.rotated, false});
      put(sequence.format, to.data + (to.length + i) * bytes, own, layer.head_dim);
    }
  }

  // Sets heads `to` of a row to those of `from`, which may be the same memory, rotated if the layer does so.
  void turn(const DecoderLayer& layer, int64_t row, const float* from, float* to, const Rows& rows) {
    if (layer.rotation < 0) {
      if (from != to) std::copy_n(from, rows.count * rows.dim, to);
      return;
    }
    const Rotation& angles = call_.rotations[layer.rotation];
    kernels_.rows.rope[layer.interleaved][kFloat32](
        to, from, {{angles.cos + row * angles.pairs, kFloat32}, 0},
        {{angles.sin + row * angles.pairs, kFloat32}, 0}, rows, angles.pairs);
  }

 private:
  // All heads have the same keys, which begin with the values.
  void attend_to_latents(const DecoderLayer& layer, const UnitPart& part) {
    const int64_t first = part.sequence->start * layer.heads + part.head * part.group;
    char* const kept = part.kept.data;
    const AttentionHead head{
        reinterpret_cast<const char*>(at_.latent_q + first * layer.head_dim), kept,   kept, nullptr,
        reinterpret_cast<char*>(at_.attended + first * layer.value_dim()),    nullptr};
    Attention all = attention_of(layer, part);
    all.q_row = layer.heads * layer.head_dim;
    attend(layer, all, head, part);
  }

  // Calls work(begin, end, oldest) for rows [begin, end) of queries in the same chunk, whose first key is
  // `oldest`; without chunks, for all rows.
  template <class Work>
  static void each_chunk(const DecoderLayer& layer, const UnitPart& part, const Work& work) {
    if (!layer.chunked) return work(int64_t{0}, part.rows(), part.oldest);
    const Sequence& sequence = *part.sequence;
    for (int64_t at = sequence.length, next; at < sequence.end(); at = next) {
      const int64_t first = layer.first_seen(at);
      next = std::min(sequence.end(), first + layer.window);
      work((at - sequence.length) * part.group, (next - sequence.length) * part.group,
           std::max<int64_t>(0, first - part.dropped()));
    }
  }

  // Multiplies what the heads of a unit attended to by the sigmoids of the second halves of their queries.
  void gate(const DecoderLayer& layer, const UnitPart& part, float* attended) const {
    const int64_t d = layer.head_dim, first = part.head * part.group;
    for (int64_t i = 0; i < part.sequence->tokens(); ++i)
      for (int64_t head = 0; head < part.group; ++head) {
        const float* const by = at_.q + (part.sequence->start + i) * layer.q.n + (2 * (first + head) + 1) * d;
        float* const to = attended + i * layer.heads * d + head * d;
        for (int64_t j = 0; j < d; ++j) to[j] /= 1 + std::exp(-by[j]);
      }
  }

  // The pieces of a unit that this thread has; the thread that is last merges all: whether this one did.
  bool attend(const DecoderLayer& layer, const Attention& all, const AttentionHead& head,
              const UnitPart& part) {
    const int64_t rows = part.rows(), e = all.e;
    float* const sums = part.pieces > 1 ? at_.sums + part.sums_before * (e + 2) : nullptr;
    for (int64_t piece = part.first; piece < part.last; ++piece)
      each_chunk(layer, part, [&](int64_t begin, int64_t end, int64_t oldest) {
        for (int64_t row = begin; row < end; row += kernels_.attention.few)
          kernels_.attention.few_rows[part.sequence->format](
              all, head,
              {row, std::min(end - row, kernels_.attention.few), std::max(part.cut(piece), oldest),
               part.cut(piece + 1), sums ? sums + (piece * rows + row) * (e + 2) : nullptr},
              at_.workspace);
      });
    if (!sums) return true;
    const int64_t count = part.last - part.first;
    if (at_.done[part.number].fetch_add(count, std::memory_order_acq_rel) + count < part.pieces) return false;
    at_.done[part.number].store(0, std::memory_order_relaxed);
    kernels_.attention.merge(all, head, 0, rows, sums, part.pieces);
    return true;
  }

  static Attention attention_of(const DecoderLayer& layer, const UnitPart& part) {
    const Sequence& sequence = *part.sequence;
    const int64_t length = part.kept.length;
    Attention all{};
    all.heads = part.group;
    all.t = sequence.tokens();
    all.s = length + all.t;
    all.d = layer.head_dim;
    all.e = layer.value_dim();
    all.k_row = all.v_row = layer.head_dim / kBlocks[sequence.format].values;
    all.q_head = layer.head_dim;
    all.out_head = all.e;
    all.q_row = part.group * layer.head_dim;
    all.out_row = layer.heads * all.e;
    all.q_type = kFloat32;
    all.kv_format = sequence.format;
    all.scale = layer.scale;
    all.softcap = layer.softcap;
    all.high = length;
    all.low = layer.window && !layer.chunked ? length + 1 - layer.window : -all.t;
    return all;
  }

  // Queries or keys of all rows (rows, width), the weight of their norm, or null, and from one head to the
  // next.
  struct Projected {
    const float* values;
    int64_t width;
    const float* norm;
    int64_t head;
  };

  // Rotates some heads of each token of a sequence, starting at `first`, into at_.rotated (tokens, heads,
  // head_dim).
  void rotate(const DecoderLayer& layer, const Sequence& sequence, const Projected& from, int64_t first,
              int64_t heads) {
    if (from.head != layer.head_dim) return rotate_apart(layer, sequence, from, first, heads);
    const Rows rows{heads, layer.head_dim, false};
    const int64_t begin = first * layer.head_dim, values = heads * layer.head_dim;
    const bool norms_first = from.norm && !layer.norms_last;
    for (int64_t i = 0; i < sequence.tokens(); ++i) {
      const int64_t row = sequence.start + i;
      const float* head = from.values + row * from.width + begin;
      float* const to = at_.rotated + i * values;
      if (norms_first) {
        if (layer.norms_whole_rows) {
          const float by = inverse_rms(from.values + row * from.width, from.width, layer.eps);
          for (int64_t j = 0; j < values; ++j) to[j] = head[j] * by * from.norm[begin + j];
        } else {
          kernels_.rows.rms_norm[kFloat32][1](to, head, from.norm, rows, layer.eps);
        }
        head = to;
      }
      turn(layer, row, head, to, rows);
      if (from.norm && layer.norms_last)
        kernels_.rows.rms_norm[kFloat32][1](to, to, from.norm, rows, layer.eps);
    }
  }

  // The same, head by head: they have other values between them.
  void rotate_apart(const DecoderLayer& layer, const Sequence& sequence, const Projected& from, int64_t first,
                    int64_t heads) {
    const Rows one{1, layer.head_dim, false};
    for (int64_t i = 0; i < sequence.tokens(); ++i)
      for (int64_t j = 0; j < heads; ++j) {
        const float* head = from.values + (sequence.start + i) * from.width + (first + j) * from.head;
        float* const to = at_.rotated + (i * heads + j) * layer.head_dim;
        if (from.norm) kernels_.rows.rms_norm[kFloat32][1](to, head, from.norm, one, layer.eps), head = to;
        turn(layer, sequence.start + i, head, to, one);
      }
  }

  // Writes a row of keys or values as the cache stores it.
  void put(Format format, char* to, const float* from, int64_t d) const {
    if (format == kQ8_0) return kernels_.stored.quantize(kQ8_0, to, from, d);
    kernels_.attention.narrow[format](to, from, d, 1.f);
  }

  // 1 / sqrt(mean of squares + eps). It has a partial sum per lane, so that compilers vectorize it.
  static float inverse_rms(const float* x, int64_t n, float eps) {
    constexpr int64_t kLanes = 16;
    float sums[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes)
      for (int64_t j = 0; j < kLanes; ++j) sums[j] += x[i + j] * x[i + j];
    double sum = 0;
    for (; i < n; ++i) sum += x[i] * x[i];
    for (const float each : sums) sum += each;
    return static_cast<float>(1 / std::sqrt(sum / static_cast<double>(n) + eps));
  }

  // Writes the new keys and values in this part's pieces.
  void append(const DecoderLayer& layer, const UnitPart& part, char* keys, char* values) {
    const Sequence& sequence = *part.sequence;
    const int64_t d = layer.head_dim, bytes = row_bytes(sequence.format, d), length = part.kept.length;
    const int64_t begin = std::max(part.cut(part.first), length), end = part.cut(part.last);
    if (begin >= end) return;
    rotate(layer, sequence, {at_.k, layer.k.n, layer.k_norm, d}, part.head, 1);
    for (int64_t at = begin; at < end; ++at)
      put(sequence.format, keys + at * bytes, at_.rotated + (at - length) * d, d);
    const float* const v = (layer.v.n ? at_.v : at_.k) + part.head * d;
    for (int64_t at = begin; at < end; ++at) {
      const float* value = v + (sequence.start + at - length) * layer.k.n;
      if (layer.v_norm) {
        kernels_.rows.rms_norm[kFloat32][1](at_.rotated, value, layer.v_norm, {1, d, false}, layer.eps);
        value = at_.rotated;
      }
      put(sequence.format, values + at * bytes, value, d);
    }
  }

  const Kernels& kernels_;
  const DecoderCall& call_;
  const AttentionBuffers at_;
};

}  // namespace cpu
