// The layout of the memory of a call of decoder layers.
#pragma once
#include <algorithm>
#include <atomic>

#include "../quantized/dequantized_linear.h"
#include "../threads/load_balance.h"
#include "../threads/lockstep.h"
#include "experts.h"

namespace cpu {

// Allocates pieces of memory, each on its own cache lines.
struct Pieces {
  int64_t bytes = 0;
  int64_t take(int64_t of) {
    const int64_t at = bytes;
    bytes += (of + 63) / 64 * 64;
    return at;
  }
  int64_t floats(int64_t count) { return take(count * 4); }
};

// What a thread needs for a row of latent attention: an input of products, and a result.
inline int64_t latent_floats(const Latent& of) {
  const int64_t input = std::max({of.q_a.n, of.plain, of.kv_rank}),
                result = std::max(of.kv_rank, of.value_dim);
  return std::max(input + result, of.kv_rank + of.rotated);
}

// The largest sizes among the layers and the ends.
struct DecoderSizes {
  int64_t width = 0, q = 0, kv = 0, heads = 0, group = 0, head_dim = 0;
  int64_t feed_forward = 0;  // of all experts of a token, and the shared one
  int64_t experts = 0, experts_used = 0;
  int64_t input = 0;         // of a layer's own input
  bool has_latents = false;  // a layer has latent attention
  // Of latent attention: queries of latents, values of all heads, and what a thread needs for a row.
  int64_t made = 0, values = 0, latent = 0;
  int64_t recurrent = 0;        // floats that a thread needs for a row of a mixer with a state
  bool has_dense_norm = false;  // a layer has a dense feed-forward beside experts
  int64_t packed = 0;           // bytes of a packed row and its rounding error
  int64_t longest = 0;          // values in the longest row of a weight
  int64_t units = 0;            // of attention: key-value heads
  int64_t attention = 0;        // floats
  int64_t weights = 0;          // of the layer that has the fewest
  int64_t window = 0;           // the widest, if all layers have one; 0 otherwise

  DecoderSizes(const Kernels& kernels, const DecoderLayer* const* layers, int64_t count,
               const DecoderEnds* ends) {
    for (int64_t i = 0; i < count; ++i) add(kernels, *layers[i]);
    for (int64_t i = 0; i < count; ++i)
      window = layers[i]->window && (window || !i) ? std::max(window, layers[i]->window) : 0;
    if (ends) add(kernels, ends->output);
  }

 private:
  void add(const Kernels& kernels, const DecoderLayer& layer) {
    width = std::max(width, layer.width);
    q = std::max(q, layer.q.n);
    kv = std::max(kv, layer.k.n);
    feed_forward = std::max(feed_forward, layer.feed_forward * std::max<int64_t>(layer.experts.used, 1) +
                                              layer.experts.shared.gate.n);
    input = std::max(input, layer.input_gate.n);
    feed_forward = std::max(feed_forward, input);
    has_dense_norm = has_dense_norm || layer.experts.dense_norm;
    experts = std::max(experts, layer.experts.count);
    experts_used = std::max(experts_used, layer.experts.used);
    add(layer.heads, layer.latent);
    add(layer.recurrent);
    heads = std::max(heads, layer.heads);
    group = std::max(group, layer.group());
    head_dim = std::max(head_dim, layer.head_dim);
    units = std::max(units, layer.latent.kv_rank ? layer.heads : layer.kv_heads);
    weights = weights ? std::min(weights, layer.weights()) : layer.weights();
    for (const Matrix& each : {layer.q,
                               layer.k,
                               layer.v,
                               layer.output,
                               layer.gate,
                               layer.up,
                               layer.down,
                               layer.experts.router,
                               layer.experts.shared.gate,
                               layer.experts.shared.up,
                               layer.experts.shared.down,
                               layer.experts.shared_gate,
                               layer.input_gate,
                               layer.input_projection,
                               layer.latent.q_a,
                               layer.latent.kv_a,
                               layer.latent.k_b,
                               layer.latent.v_b,
                               layer.recurrent.gate,
                               layer.recurrent.rate,
                               layer.recurrent.step})
      add(kernels, each);
    for (int64_t i = 0; i < layer.experts.kind_count; ++i) add(kernels, layer.experts.kinds[i]);
    Attention all{};
    all.d = layer.head_dim;
    all.e = layer.value_dim();
    attention = std::max(attention, kernels.attention.workspace(all));
  }
  void add(const Recurrent& of) {
    if (!of.taps) return;
    kv = std::max({kv, of.gate.n, 2 * of.value_heads});
    // Filtered queries, keys and values, and two rows of a head; or inputs and results of channels.
    recurrent = std::max(recurrent, of.key_heads ? 2 * of.key_dim + 3 * of.value_dim : 2 * of.channels);
  }
  void add(int64_t count, const Latent& of) {
    if (!of.kv_rank) return;
    has_latents = true;
    q = std::max({q, of.q_a.n, count * (of.kv_rank + of.rotated)});
    kv = std::max(kv, of.kv_a.n);
    made = std::max(made, of.q_a.n ? count * of.query_dim() : 0);
    values = std::max(values, count * of.value_dim);
    latent = std::max(latent, latent_floats(of));
  }
  void add(const Kernels& kernels, const Matrix& matrix) {
    longest = std::max(longest, matrix.k);
    packed = std::max({packed,
                       2 * kernels.stored.products(matrix.interleaved).packed_bytes(matrix.format, matrix.k),
                       kernels.stored.as_stored.packed_bytes(kF32, matrix.k)});
  }
};

// Offsets in bytes: of memory shared by all threads, and of each thread's own memory.
struct DecoderMemory {
  Pieces shared, own;
  int64_t q, k, v, attended, made, latent_q, values, change, router, shared_gate, gate, up, x, middle, third,
      mixed, sums, begins, done, took, begun;
  int64_t own_x, normed, packed, floats, rotated, latent, recurrent, attention, choices, probabilities, order;

  DecoderMemory(const DecoderSizes& sizes, const DecoderCall& call, int team) {
    const int64_t rows = call.rows, units = sizes.units * call.sequence_count;
    int64_t unit_rows = 0;  // query rows of a sequence per key-value head
    int64_t sum_rows = 0;   // of all heads and all pieces of their keys
    for (int64_t s = 0; s < call.sequence_count; ++s) {
      const Sequence& sequence = call.sequences[s];
      unit_rows = std::max(unit_rows, sequence.tokens() * sizes.group);
      sum_rows += sizes.heads * sequence.tokens() * pieces_of(sequence, sizes.window);
    }
    q = shared.floats(rows * sizes.q);
    k = shared.floats(rows * sizes.kv);
    v = shared.floats(rows * sizes.kv);
    attended = shared.floats(rows * sizes.q);
    made = shared.floats(rows * sizes.made);
    latent_q = shared.floats(sizes.has_latents ? rows * sizes.q : 0);
    values = shared.floats(rows * sizes.values);
    change = shared.floats(rows * sizes.width);
    router = shared.floats(rows * sizes.experts);
    shared_gate = shared.floats(rows);
    gate = shared.floats(rows * sizes.feed_forward);
    up = shared.floats(rows * sizes.feed_forward);
    x = shared.floats(rows * sizes.width);
    middle = shared.floats(rows * sizes.width);
    third = shared.floats(sizes.input ? rows * sizes.width : 0);
    mixed = shared.floats(sizes.has_dense_norm ? rows * sizes.width : 0);
    sums = shared.floats(sum_rows * (sizes.head_dim + 2));
    begins = shared.floats(Balance::values(team));
    done = shared.take(units * static_cast<int64_t>(sizeof(std::atomic<int64_t>)));
    took = shared.take(team * static_cast<int64_t>(sizeof(ShareTicks)));
    begun = shared.take(Lockstep::bytes(team));
    own_x = own.floats(rows * sizes.width);
    normed = own.floats(rows * sizes.width);
    packed = own.take(rows * sizes.packed);
    floats = own.floats(kUnpackedRows * sizes.longest);
    rotated = own.floats(unit_rows * sizes.head_dim);
    latent = own.floats(rows * sizes.latent);
    recurrent = own.floats(rows * sizes.recurrent);
    attention = own.floats(sizes.attention);
    choices = own.take(rows * sizes.experts_used * static_cast<int64_t>(sizeof(Choice)));
    probabilities = own.floats(sizes.experts);
    order = own.take(sizes.experts * static_cast<int64_t>(sizeof(int32_t)));
  }

  int64_t bytes(int team) const { return shared.bytes + team * own.bytes; }

 private:
  // The most pieces of the keys that a sequence's queries see in a layer.
  static int64_t pieces_of(const Sequence& sequence, int64_t window) {
    const int64_t keys = window ? std::min(sequence.end(), window + sequence.tokens()) : sequence.end();
    return keys / kFewRowsPiece + 2;
  }
};

}  // namespace cpu
