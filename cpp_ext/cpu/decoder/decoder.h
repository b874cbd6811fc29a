// Whole decoder layers for a few rows, and the whole way from tokens to logits: airllm/engine/decoder.py and
// model.py are the definition. What stands here is what a call is about; thread.h is how a thread
// does its share.
#pragma once
#include <cmath>
#include <cstdint>

#include "../kernels.h"

namespace cpu {

// A weight (n, k) as it is stored.
struct Matrix {
  Format format;
  const char* data;
  int64_t n, k;
  const float* bias;  // or null
};

struct Expert {
  Matrix gate, up, down;
};

// A layer's experts, of which each token goes to those that the router likes best; count 0: it has none.
struct Experts {
  Matrix router;       // (count, width)
  const Expert* each;  // as many as `count`
  int64_t count, used;
  bool normalize;       // the shares of those that a token goes to add up to one
  const Matrix* kinds;  // of their matrices, one for each format and length of a row that there is
  int64_t kind_count;
};

enum Activation : int { kSilu, kGeluTanh, kGelu };

// What a layer does to its rows; norms that it does not have are null.
struct DecoderLayer {
  Matrix q, k, v, output, gate, up, down;  // the last three: of a layer without experts
  Experts experts;
  const float *attention_norm, *q_norm, *k_norm, *attention_post_norm;
  const float *feed_forward_norm, *feed_forward_post_norm;
  int64_t width, heads, kv_heads, head_dim;
  int64_t feed_forward;       // or of each expert
  int64_t index;              // of its part of a cache
  int64_t rotation;           // which of the call's tables rotates its queries and keys; -1: none
  int64_t window;             // the last so many keys that a query sees; 0: all
  float eps, scale, softcap;  // softcap 0: none
  float residual_scale;       // of what each half adds to x
  float temperature;          // queries at p are scaled by 1 + temperature * log(1 + p / temperature_length)
  int64_t temperature_length;
  Activation activation;
  bool interleaved;
  bool norms_whole_rows;  // of q and k, not of their heads

  int64_t group() const { return heads / kv_heads; }
  // Of the queries at a position.
  float temperature_at(int64_t position) const {
    if (temperature == 0.f) return 1.f;
    return 1.f + temperature * std::log1p(static_cast<float>(position / temperature_length));
  }
  // That one token meets.
  int64_t weights() const {
    const int64_t feed_forwards = experts.count ? experts.used : 1;
    return q.n * q.k + k.n * k.k + v.n * v.k + output.n * output.k + experts.router.n * experts.router.k +
           3 * feed_forwards * feed_forward * width;
  }
};

// Cosines and sines (rows, pairs) of a call's rows.
struct Rotation {
  const float *cos, *sin;
  int64_t pairs;
};

// Rows [start, stop) of x are the next tokens of a sequence that has `length`. Its keys and values are
// (layers, 2, kv_heads, capacity, head_dim) from `cache` on.
struct Sequence {
  int64_t start, stop, length, capacity;
  char* cache;
  Format format;  // one of kCacheFormats

  int64_t tokens() const { return stop - start; }
  int64_t end() const { return length + tokens(); }
};

// What stands before the layers of a model, and after them.
struct DecoderEnds {
  Matrix embedding, output;  // (vocabulary, width)
  const float* norm;
  float eps, embedding_scale, softcap;  // softcap 0: none
  float logit_scale = 1.f;
};

// Rows go through the layers, one after the other; sequences get the keys and values. The rows are x (rows,
// width), in place; or, where there are ends, those of tokens, and logits (sequences, vocabulary) come out,
// of each sequence's last row.
struct DecoderCall {
  const DecoderLayer* const* layers;
  int64_t count, rows, width;
  float* x;
  const DecoderEnds* ends;  // or null
  const int64_t* tokens;
  float* logits;
  float* change;  // (rows, width), where each half of a layer leaves what is to be added to x; or null
  const Rotation* rotations;
  const Sequence* sequences;
  int64_t sequence_count;
};

}  // namespace cpu
