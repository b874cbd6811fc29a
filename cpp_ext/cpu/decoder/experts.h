// Selects the experts for the tokens of a call. Every thread does so itself, from the router's logits:
// airllm/engine/layers/experts.py, mix_experts(), is the definition.
#pragma once
#include <algorithm>
#include <cmath>
#include <numeric>

#include "decoder.h"

namespace cpu {

// A token and one of its experts, whose result is weighted.
struct Choice {
  int64_t expert, token;
  float share;
};

// The tokens of one expert: choices [first, first + count) of all.
struct ExpertRows {
  int64_t expert, place;  // its index among all experts, and among a token's experts
  int64_t first, count;
  const Choice* choices;
};

class __attribute__((visibility("hidden"))) Routing {
 public:
  Routing() = default;
  // Buffers for all tokens' choices, and for one probability and one index per expert.
  Routing(Choice* choices, float* probabilities, int32_t* order)
      : choices_(choices), probabilities_(probabilities), order_(order) {}

  // `logits` (tokens, experts.count): the router's output.
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

  // The number of experts that have a token.
  int64_t experts() const { return experts_; }

  // Calls visit(rows) for each of them, in index order.
  template <class Visit>
  void each(const Visit& visit) const {
    for (int64_t first = 0, place = 0, stop; first < count_; first = stop, ++place) {
      for (stop = first; stop < count_ && choices_[stop].expert == choices_[first].expert;) ++stop;
      visit(ExpertRows{choices_[first].expert, place, first, stop - first, choices_ + first});
    }
  }

 private:
  void choose(const RowKernels& kernels, const Experts& experts, const float* logits, int64_t token) {
    score(kernels, experts, logits);
    bias_ = experts.selection_bias;
    preferred_ = experts.scales_input ? logits : probabilities_;  // sigmoids may be equal
    std::partial_sort(order_, order_ + experts.used, order_ + list_candidates(experts),
                      [&](int32_t a, int32_t b) { return before(a, b); });
    float all = experts.normalize ? 0.f : 1.f;  // what the weights sum to
    for (int64_t i = 0; i < experts.used && experts.normalize; ++i) all += probabilities_[order_[i]];
    for (int64_t i = 0; i < experts.used; ++i)
      choices_[token * experts.used + i] = {order_[i], token,
                                            probabilities_[order_[i]] / all * experts.scale *
                                                (experts.scales ? experts.scales[order_[i]] : 1.f)};
  }

  void score(const RowKernels& kernels, const Experts& experts, const float* logits) {
    if (!experts.sigmoid)
      return kernels.softmax[kFloat32](probabilities_, logits, {}, {1, experts.count, false}, 1.f);
    for (int64_t i = 0; i < experts.count; ++i) probabilities_[i] = 1 / (1 + std::exp(-logits[i]));
  }
  float preference(int32_t expert) const { return preferred_[expert] + (bias_ ? bias_[expert] : 0.f); }

  // Lists the experts of the best groups, and returns how many there are.
  int64_t list_candidates(const Experts& experts) {
    const int64_t size = experts.count / experts.groups;
    int64_t found = 0;
    for (int64_t group = 0; group < experts.groups; ++group) {
      if (!is_among_the_best(experts, group)) continue;
      std::iota(order_ + found, order_ + found + size, static_cast<int32_t>(group * size));
      found += size;
    }
    return found;
  }
  bool is_among_the_best(const Experts& experts, int64_t group) const {
    if (experts.groups_used >= experts.groups) return true;
    const float own = goodness(experts, group);
    int64_t better = 0;
    for (int64_t other = 0; other < experts.groups; ++other) {
      const float theirs = goodness(experts, other);
      better += theirs > own || (theirs == own && other < group);
    }
    return better < experts.groups_used;
  }
  // The sum of a group's two best preferences, or its best one.
  float goodness(const Experts& experts, int64_t group) const {
    const int64_t size = experts.count / experts.groups;
    float first = -INFINITY, second = -INFINITY;
    for (int64_t i = group * size; i < (group + 1) * size; ++i) {
      const float found = preference(static_cast<int32_t>(i));
      second = std::max(second, std::min(first, found));
      first = std::max(first, found);
    }
    return size > 1 && experts.group_best > 1 ? first + second : first;
  }

  // Of equal values the first wins; NaN is last.
  bool before(int32_t a, int32_t b) const {
    const float x = preference(a), y = preference(b);
    if (x > y || y > x) return x > y;
    const bool is_x = x == x, is_y = y == y;
    return is_x != is_y ? is_x : a < b;
  }

  Choice* choices_ = nullptr;
  float* probabilities_ = nullptr;
  int32_t* order_ = nullptr;
  const float *bias_ = nullptr, *preferred_ = nullptr;  // of the layer whose experts are chosen
  int64_t count_ = 0, experts_ = 0;
};

}  // namespace cpu
