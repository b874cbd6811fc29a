// Which experts of a layer the tokens of a call go to. Every thread finds that out for itself, from the
// router's logits: airllm/engine/decoder.py, experts(), is the definition.
#pragma once
#include <algorithm>
#include <numeric>

#include "decoder.h"

namespace cpu {

// A token goes to an expert, whose result has a share in the token's.
struct Choice {
  int64_t expert, token;
  float share;
};

// The tokens that go to one expert: choices [first, first + count) of all.
struct ExpertRows {
  int64_t expert, place;  // among all, and among those that a token goes to
  int64_t first, count;
  const Choice* choices;
};

class __attribute__((visibility("hidden"))) Routing {
 public:
  Routing() = default;
  // Room for as many choices as all tokens make, and for values and numbers of all experts.
  Routing(Choice* choices, float* probabilities, int32_t* order)
      : choices_(choices), probabilities_(probabilities), order_(order) {}

  // `logits` (tokens, experts.count): the router's.
  void find(const RowKernels& kernels, const Experts& experts, const float* logits, int64_t tokens) {
    count_ = tokens * experts.used;
    for (int64_t token = 0; token < tokens; ++token)
      choose(kernels, experts, logits + token * experts.count, token);
    std::sort(choices_, choices_ + count_, [](const Choice& a, const Choice& b) {
      return a.expert != b.expert ? a.expert < b.expert : a.token < b.token;
    });
    experts_ = 0;
    for (int64_t i = 0; i < count_; ++i) experts_ += !i || choices_[i].expert != choices_[i - 1].expert;
  }

  // To which any token goes.
  int64_t experts() const { return experts_; }

  // Calls visit(rows) for each of them, in the order of their numbers.
  template <class Visit>
  void each(const Visit& visit) const {
    for (int64_t first = 0, place = 0, stop; first < count_; first = stop, ++place) {
      for (stop = first; stop < count_ && choices_[stop].expert == choices_[first].expert;) ++stop;
      visit(ExpertRows{choices_[first].expert, place, first, stop - first, choices_ + first});
    }
  }

 private:
  void choose(const RowKernels& kernels, const Experts& experts, const float* logits, int64_t token) {
    kernels.softmax[kFloat32](probabilities_, logits, {}, {1, experts.count, false}, 1.f);
    std::iota(order_, order_ + experts.count, 0);
    std::partial_sort(order_, order_ + experts.used, order_ + experts.count,
                      [&](int32_t a, int32_t b) { return before(a, b); });
    float all = experts.normalize ? 0.f : 1.f;
    for (int64_t i = 0; i < experts.used && experts.normalize; ++i) all += probabilities_[order_[i]];
    for (int64_t i = 0; i < experts.used; ++i)
      choices_[token * experts.used + i] = {order_[i], token, probabilities_[order_[i]] / all};
  }

  // Of equals the first; what is no number comes last.
  bool before(int32_t a, int32_t b) const {
    const float x = probabilities_[a], y = probabilities_[b];
    if (x > y || y > x) return x > y;
    const bool is_x = x == x, is_y = y == y;
    return is_x != is_y ? is_x : a < b;
  }

  Choice* choices_ = nullptr;
  float* probabilities_ = nullptr;
  int32_t* order_ = nullptr;
  int64_t count_ = 0, experts_ = 0;
};

}  // namespace cpu
