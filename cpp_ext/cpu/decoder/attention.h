// Shares the attention of a decoder layer among threads: each gets about the same number of keys times
// queries, across heads. A unit is one key-value head of one sequence with the queries that share it; of
// latent attention, where all heads share one, some of the heads, if there are fewer pieces than threads. Its
// keys are cut into pieces at fixed positions (ops/attention.h), and a thread takes whole pieces. So the
// number of threads, and the other sequences of a call, do not change a bit of the result. The thread with a
// piece writes the new keys and values in it into the cache; the one that finishes last merges the results.
#pragma once
#include <algorithm>

#include "../ops/attention.h"
#include "decoder.h"

namespace cpu {

// A thread's part of a unit: pieces [first, last) of `pieces`.
struct UnitPart {
  const Sequence* sequence;
  LayerCache kept;
  int64_t group, units;  // query heads of a unit, and units of the sequence
  int64_t head, number;  // of the unit in its sequence, and in the call
  int64_t oldest;        // the first key that a query sees
  int64_t first, last, pieces;
  int64_t sums_before;  // rows of sums of all units before this one

  int64_t rows() const { return sequence->tokens() * group; }
  // Tokens of the sequence that its cache lacks.
  int64_t dropped() const { return sequence->length - kept.length; }

  // Where a piece begins.
  int64_t cut(int64_t piece) const {
    const int64_t at = (oldest / kFewRowsPiece + piece) * kFewRowsPiece;
    return std::clamp(at, oldest, kept.length + sequence->tokens());
  }
};

class __attribute__((visibility("hidden"))) UnitParts {
 public:
  UnitParts(const DecoderLayer& layer, const DecoderCall& call, int64_t me, int64_t all)
      : layer_(layer), call_(call), me_(me), all_(all) {
    for (int64_t s = 0; s < call.sequence_count; ++s) {
      const UnitPart unit = unit_of(call.sequences[s]);
      total_ += unit.units * cost(unit, 0, unit.pieces);
    }
  }

  // Calls work(part) for each of this thread's parts.
  template <class Work>
  void each(const Work& work) const {
    int64_t at = 0, number = 0, sums_before = 0;
    for (int64_t s = 0; s < call_.sequence_count; ++s) {
      UnitPart unit = unit_of(call_.sequences[s]);
      const int64_t size = cost(unit, 0, unit.pieces);
      for (unit.head = 0; unit.head < unit.units; ++unit.head, at += size) {
        unit.number = number++;
        unit.sums_before = sums_before;
        sums_before += unit.pieces * unit.rows();
        if (at + size > start_of(me_) && at < start_of(me_ + 1)) take(unit, at, work);
      }
    }
  }

 private:
  static constexpr int64_t kAnyPiece = 32;  // the fixed cost of a piece, in keys

  UnitPart unit_of(const Sequence& sequence) const {
    UnitPart unit{};
    unit.sequence = &sequence;
    unit.kept = sequence.of(layer_);
    unit.oldest = std::max<int64_t>(0, layer_.first_seen(sequence.length) - unit.dropped());
    unit.pieces =
        (unit.kept.length + sequence.tokens() - 1) / kFewRowsPiece - unit.oldest / kFewRowsPiece + 1;
    unit.units = layer_.latent.kv_rank ? units_of_latents(unit.pieces) : layer_.kv_heads;
    unit.group = layer_.heads / unit.units;
    return unit;
  }
  // As few as give each thread a piece: each unit reads all keys.
  int64_t units_of_latents(int64_t pieces) const {
    int64_t units = 1;
    while (units < layer_.heads && (units * pieces < all_ || layer_.heads % units)) ++units;
    return units;
  }
  // Of pieces [first, last): reading a key costs as much as computing eight rows.
  int64_t cost(const UnitPart& unit, int64_t first, int64_t last) const {
    const int64_t keys = unit.cut(last) - unit.cut(first);
    return (keys + kAnyPiece * (last - first)) * (unit.rows() + 8);
  }
  int64_t start_of(int64_t thread) const { return total_ * thread / all_; }

  // A piece belongs to the thread in whose share its middle lies.
  template <class Work>
  void take(UnitPart unit, int64_t at, const Work& work) const {
    const auto first_from = [&](int64_t start) {
      int64_t piece = 0;
      while (piece < unit.pieces && at + (cost(unit, 0, piece) + cost(unit, 0, piece + 1)) / 2 < start)
        ++piece;
      return piece;
    };
    unit.first = first_from(start_of(me_));
    unit.last = first_from(start_of(me_ + 1));
    if (unit.first < unit.last) work(unit);
  }

  const DecoderLayer& layer_;
  const DecoderCall& call_;
  int64_t me_, all_, total_ = 0;
};

}  // namespace cpu
