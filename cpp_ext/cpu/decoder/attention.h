// Shares the attention of a decoder layer among threads: each gets the same number of keys times queries,
// across heads. A unit is one key-value head of one sequence with the queries that share it. It may be split
// among several threads, each with some of its keys. The last of them writes the new keys and values into the
// cache; the one that finishes last merges the results.
#pragma once
#include <algorithm>

#include "decoder.h"

namespace cpu {

// A thread's part of a unit: part `part` of `parts`, with keys [begin, end).
struct UnitPart {
  const Sequence* sequence;
  int64_t head, number;  // of the unit in its sequence, and in the call
  int64_t part, parts, first_thread;
  int64_t begin, end;

  bool has_new_keys() const { return part == parts - 1; }
};

class __attribute__((visibility("hidden"))) UnitParts {
 public:
  UnitParts(const DecoderLayer& layer, const DecoderCall& call, int64_t me, int64_t all)
      : layer_(layer), call_(call), me_(me), all_(all) {
    for (int64_t s = 0; s < call.sequence_count; ++s) total_ += layer.kv_heads * cost(call.sequences[s]);
  }

  // Calls work(part) for each of this thread's parts.
  template <class Work>
  void each(const Work& work) const {
    int64_t at = 0, number = 0;
    for (int64_t s = 0; s < call_.sequence_count; ++s) {
      const int64_t size = cost(call_.sequences[s]);
      for (int64_t head = 0; head < layer_.kv_heads; ++head, at += size, ++number)
        if (start_of(me_ + 1) > at && start_of(me_) < at + size)
          work(part_of(call_.sequences[s], head, number, at, size));
    }
  }

 private:
  static constexpr int64_t kStep = 16;     // keys that the kernels take at once
  static constexpr int64_t kAnyUnit = 32;  // the fixed cost of a unit, in keys

  int64_t first_key(const Sequence& sequence) const {
    return layer_.window ? std::max<int64_t>(0, sequence.length + 1 - layer_.window) : 0;
  }
  int64_t cost(const Sequence& sequence) const {  // reading a key costs as much as computing eight rows
    const int64_t keys = sequence.end() - first_key(sequence);
    return (keys + kAnyUnit) * (sequence.tokens() * layer_.group() + 8);
  }
  int64_t start_of(int64_t thread) const { return total_ * thread / all_; }

  UnitPart part_of(const Sequence& sequence, int64_t head, int64_t number, int64_t at, int64_t size) const {
    int64_t first = me_, last = me_;
    while (first > 0 && start_of(first) > at) --first;
    while (last < all_ - 1 && start_of(last + 1) < at + size) ++last;
    // Where the keys of a thread begin.
    const int64_t oldest = first_key(sequence), keys = sequence.end() - oldest;
    const auto cut = [&](int64_t thread) {
      if (thread == first) return oldest;
      if (thread > last) return sequence.end();
      const int64_t share = keys * (start_of(thread) - at) / size;
      return oldest + std::min(share, sequence.length - oldest) / kStep * kStep;
    };
    return {&sequence, head, number, me_ - first, last - first + 1, first, cut(me_), cut(me_ + 1)};
  }

  const DecoderLayer& layer_;
  const DecoderCall& call_;
  int64_t me_, all_, total_ = 0;
};

}  // namespace cpu
