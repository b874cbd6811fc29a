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

// The largest sizes among the layers and the ends.
struct DecoderSizes {
  int64_t width = 0, q = 0, kv = 0, group = 0, head_dim = 0;
  int64_t feed_forward = 0;  // of all experts of a token, and the shared one
  int64_t experts = 0, experts_used = 0;
  int64_t input = 0;            // of a layer's own input
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
    group = std::max(group, layer.group());
    head_dim = std::max(head_dim, layer.head_dim);
    units = std::max(units, layer.kv_heads);
    weights = weights ? std::min(weights, layer.weights()) : layer.weights();
    for (const Matrix& each :
         {layer.q, layer.k, layer.v, layer.output, layer.gate, layer.up, layer.down, layer.experts.router,
          layer.experts.shared.gate, layer.experts.shared.up, layer.experts.shared.down,
          layer.experts.shared_gate, layer.input_gate, layer.input_projection})
      add(kernels, each);
    for (int64_t i = 0; i < layer.experts.kind_count; ++i) add(kernels, layer.experts.kinds[i]);
    Attention all{};
    all.d = all.e = layer.head_dim;
    attention = std::max(attention, kernels.attention.workspace(all));
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
  int64_t q, k, v, attended, change, router, shared_gate, gate, up, x, middle, third, mixed, sums, begins,
      done, took, begun;
  int64_t own_x, normed, packed, floats, rotated, attention, choices, probabilities, order;
  int64_t unit_rows = 0;  // query rows of a sequence per key-value head

  DecoderMemory(const DecoderSizes& sizes, const DecoderCall& call, int team) {
    const int64_t rows = call.rows, units = sizes.units * call.sequence_count;
    int64_t pieces = 0;  // of the keys of all units
    for (int64_t s = 0; s < call.sequence_count; ++s) {
      unit_rows = std::max(unit_rows, call.sequences[s].tokens() * sizes.group);
      pieces += sizes.units * pieces_of(call.sequences[s], sizes.window);
    }
    q = shared.floats(rows * sizes.q);
    k = shared.floats(rows * sizes.kv);
    v = shared.floats(rows * sizes.kv);
    attended = shared.floats(rows * sizes.q);
    change = shared.floats(rows * sizes.width);
    router = shared.floats(rows * sizes.experts);
    shared_gate = shared.floats(rows);
    gate = shared.floats(rows * sizes.feed_forward);
    up = shared.floats(rows * sizes.feed_forward);
    x = shared.floats(rows * sizes.width);
    middle = shared.floats(rows * sizes.width);
    third = shared.floats(sizes.input ? rows * sizes.width : 0);
    mixed = shared.floats(sizes.has_dense_norm ? rows * sizes.width : 0);
    sums = shared.floats(pieces * unit_rows * (sizes.head_dim + 2));
    begins = shared.floats(Balance::values(team));
    done = shared.take(units * static_cast<int64_t>(sizeof(std::atomic<int64_t>)));
    took = shared.take(team * static_cast<int64_t>(sizeof(ShareTicks)));
    begun = shared.take(Lockstep::bytes(team));
    own_x = own.floats(rows * sizes.width);
    normed = own.floats(rows * sizes.width);
    packed = own.take(rows * sizes.packed);
    floats = own.floats(kUnpackedRows * sizes.longest);
    rotated = own.floats(unit_rows * sizes.head_dim);
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
