// Whole decoder layers for a few rows, and whole models, from tokens to logits.
// airllm/engine/layers/decoder.py and model.py are the definition. This file describes a call; thread.h
// computes a thread's share of it.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "../kernels.h"

namespace cpu {

// A weight (n, k) as stored.
struct Matrix {
  Format format;
  const char* data;
  int64_t n, k;
  const float* bias;  // or null
  bool interleaved = false;
};

struct Expert {
  Matrix gate, up, down;
};

// A layer's experts; the router sends each token to the most probable ones. count 0: none.
struct Experts {
  Matrix router;       // (count, width)
  const Expert* each;  // as many as `count`
  int64_t count, used;
  bool normalize;               // the weights of a token's experts sum to one
  bool sigmoid;                 // makes scores of the router's logits, instead of a softmax
  bool scales_input;            // weights multiply the input of experts; the logits choose them
  float scale;                  // of the weights
  const float* selection_bias;  // on the scores by which experts are chosen; or null
  int64_t groups, groups_used;  // only experts of the best groups are chosen
  int64_t group_best;           // a group is as good as its best expert (1) or the sum of its best two (2)
  Expert shared;                // of all tokens; with `dense_norm`, a dense feed-forward beside the experts
  Matrix shared_gate;           // (1, width); its sigmoid weights the shared expert
  const float* scales;          // of each expert's results; or null
  // Of the dense feed-forward's result, and of the input of experts and router and of the experts' result.
  const float *dense_norm, *norm, *router_norm, *post_norm;
  const Matrix* kinds;  // one of their matrices for each format and row length
  int64_t kind_count;
};

// How rows of x are normalized: an RMS norm, or a layer norm, whose weights may be followed by its biases.
struct NormKind {
  float eps;
  bool layer, bias;
};

// Latent attention. A token keeps one row of `kv_rank + rotated` values for all heads: a latent and a rotated
// key. A head's query has `plain` values, which the head's part of `k_b` makes `kv_rank`, and `rotated` ones.
// It attends to the latents, which the head's part of `v_b` makes `value_dim` values. With `q_a`, queries are
// products of latents as well.
struct Latent {
  Matrix q_a, kv_a;               // (q_rank, width), (kv_rank + rotated, width)
  Matrix k_b, v_b;                // (heads * kv_rank, plain), (heads * value_dim, kv_rank); never interleaved
  const float *q_norm, *kv_norm;  // of latents
  int64_t kv_rank, rotated, plain, value_dim;  // kv_rank 0: no latent attention

  int64_t query_dim() const { return plain + rotated; }
};
constexpr float kLatentEps = 1e-6f;  // of their norms

// A mixer with a state instead of keys and values; `q` makes its inputs. With `key_heads`, it is the gated
// delta rule, whose inputs are queries, keys and values: `channels` of them go through filters of `taps`
// values, and each of `value_heads` heads has a matrix (key_dim, value_dim). Without, it is a gated short
// convolution. The state has the inputs (taps - 1, channels) before the next token, then the matrices.
struct Recurrent {
  int64_t taps, channels;          // taps 0: none
  const float* filter;             // (taps, channels)
  Matrix gate, rate, step;         // of the delta rule: (values, width), (value_heads, width) twice
  const float *decay, *step_bias;  // of each head
  const float* head_norm;          // (value_dim)
  int64_t key_heads, value_heads, key_dim, value_dim;
  bool tiled;        // value head i has key head i modulo their number, not the one of its group
  int64_t state_at;  // floats before the layer's state in that of all layers

  int64_t state() const { return (taps - 1) * channels + value_heads * key_dim * value_dim; }
};

enum Activation : int { kSilu, kGeluTanh, kGelu, kSwigluClamped };

// What a layer computes; absent norms are null.
struct DecoderLayer {
  // v: empty if keys are values. The last three: if it has no experts; gate: if it has one.
  Matrix q, k, v, output, gate, up, down;
  Experts experts;
  Latent latent;                        // then `q` has heads of query_dim(), and there is no `k` and no `v`
  Recurrent recurrent;                  // instead of attention
  Matrix input_gate, input_projection;  // of the layer's own input; or empty
  const float *attention_norm, *q_norm, *k_norm, *v_norm, *attention_post_norm;
  const float *feed_forward_norm, *feed_forward_post_norm;
  const float* input_post_norm;
  const float* output_scale;                 // of x after the layer: a number; or null
  const float* sinks;                        // of each head: a score without a value
  int64_t width, heads, kv_heads, head_dim;  // latent attention: head_dim is the row that a token keeps
  int64_t feed_forward;                      // width, of each expert if there are experts
  int64_t part, place;        // its keys and values: in a part of a cache, and among that part's layers
  bool shares;                // they are those of another layer, which computes them
  int64_t rotation;           // index of the rope table for its queries and keys; -1: none
  int64_t window;             // the number of last keys that a query sees; 0: all
  bool chunked;               // these are the keys of its chunk, which is as wide
  NormKind norm;              // of x
  float eps, scale, softcap;  // eps: of the norms of q and k; softcap 0: none
  float residual_scale;       // multiplies what each half of the layer adds to x
  float temperature;          // queries at p are scaled by 1 + temperature * log(1 + p / temperature_length)
  int64_t temperature_length, temperature_offset;  // the offset is added to p
  Activation activation;
  float swiglu_alpha, swiglu_limit;  // of kSwigluClamped
  bool interleaved;
  bool norms_whole_rows;  // the norms of q and k are over whole rows, not over heads
  bool norms_last;        // they come after the rotation
  bool parallel;          // the feed-forward has the input of attention, and x gets the sum of both
  bool output_gate;       // a query has a second half, whose sigmoid multiplies what its head attended to

  int64_t group() const { return heads / kv_heads; }
  // The values that a head attends to, in a row of keys or after it.
  int64_t value_dim() const { return latent.kv_rank ? latent.kv_rank : head_dim; }
  // The factor for queries at a position.
  float temperature_at(int64_t position) const {
    if (temperature == 0.f) return 1.f;
    const int64_t steps = (position + temperature_offset) / temperature_length;
    return 1.f + temperature * std::log1p(static_cast<float>(steps));
  }
  // The first position that a query at this one sees.
  int64_t first_seen(int64_t position) const {
    if (!window) return 0;
    return chunked ? position / window * window : std::max<int64_t>(0, position + 1 - window);
  }
  // The weights used for one token.
  int64_t weights() const {
    const int64_t matrices = experts.count ? 3 * experts.used : gate.data ? 3 : 2;
    const Latent& l = latent;
    const int64_t latents = l.q_a.n * l.q_a.k + l.kv_a.n * l.kv_a.k + l.k_b.n * l.k_b.k + l.v_b.n * l.v_b.k;
    const Recurrent& r = recurrent;
    const int64_t rates = r.gate.n * r.gate.k + r.rate.n * r.rate.k + r.step.n * r.step.k;
    return rates + latents + q.n * q.k + k.n * k.k + v.n * v.k + output.n * output.k +
           experts.router.n * experts.router.k +
           (matrices * feed_forward + 3 * experts.shared.gate.n + 2 * input_gate.n) * width;
  }
};

// The cosines and sines (rows, pairs) for a call's rows.
struct Rotation {
  const float *cos, *sin;
  int64_t pairs;
};

// Keys and values (2, kv_heads, capacity, head_dim) of a layer: the last `length` of its sequence's tokens.
struct LayerCache {
  char* data;
  int64_t capacity, length;
};

// Keys and values of layers of equal sizes: (layers, 2, kv_heads, room, head_dim), with a 1 instead of the 2
// for latent attention. They lack the first `dropped` tokens: a multiple of kFewRowsPiece.
struct CachePart {
  char* data;
  int64_t room, dropped;
};

// Rows [start, stop) of x are the next tokens of a sequence of `length` tokens, whose keys and values are in
// the parts of its cache.
struct Sequence {
  int64_t start, stop, length;
  Format format;  // one of kCacheFormats
  std::vector<CachePart> parts;
  const float* state = nullptr;  // of recurrent layers, before these tokens
  float* next_state = nullptr;   // after them; may be the same memory

  int64_t tokens() const { return stop - start; }
  int64_t end() const { return length + tokens(); }

  LayerCache of(const DecoderLayer& layer) const {
    const CachePart& part = parts[static_cast<size_t>(layer.part)];
    const int64_t row = layer.head_dim / kBlocks[format].values * kBlocks[format].bytes;
    const int64_t runs = (layer.latent.kv_rank ? 1 : 2) * layer.kv_heads;
    return {part.data + layer.place * runs * part.room * row, part.room, length - part.dropped};
  }
};

// The parts of a model before and after its layers.
struct DecoderEnds {
  Matrix embedding, output;  // (vocabulary, width)
  const float* norm;
  NormKind norm_kind;
  float embedding_scale, softcap;  // softcap 0: none
  float logit_scale = 1.f;
};

// Runs rows through the layers and appends keys and values to the sequences. The rows are x (rows, width), in
// place. With ends, the rows are those of `tokens`, and the result is logits (sequences, vocabulary) for the
// last row of each sequence, or (rows, vocabulary) for all rows.
struct DecoderCall {
  const DecoderLayer* const* layers;
  int64_t count, rows, width;
  float* x;
  const DecoderEnds* ends;  // or null
  const int64_t* tokens;
  float* logits;
  bool logits_of_all_rows;
  float* change;        // (rows, width): what each half of a layer adds to x; or null
  const float* inputs;  // (count, rows, input_gate.n): the layers' own inputs; or null
  const Rotation* rotations;
  const Sequence* sequences;
  int64_t sequence_count;

  int64_t logit_rows() const { return logits_of_all_rows ? rows : sequence_count; }
};

}  // namespace cpu
