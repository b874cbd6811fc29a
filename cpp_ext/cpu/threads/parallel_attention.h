// Splits attention among threads: the rows of each head into panels and, if there are fewer panels than
// threads need, the pieces of each panel's keys. Threads decide only who computes what: a panel's keys are
// always cut into the same pieces.
#pragma once
#include <memory>

#include "../ops/attention.h"
#include "buffer_pool.h"
#include "parallel.h"

namespace cpu {

class __attribute__((visibility("hidden"))) AttentionParts {
 public:
  // `pairs`: key-value heads of all batch members. `few`: the rows go through the kernels for few rows, or
  // through panels; without it, their number decides.
  AttentionParts(const AttentionKernels& kernels, const Attention& all, int64_t pairs,
                 std::optional<bool> few = {})
      : kernels_(kernels), all_(all), pairs_(pairs), few_(few.value_or(all.rows() <= kernels.few)) {
    const int64_t rows = all.rows(), attended = std::min(all.s, all.high - all.low + all.t);
    size_ = few_ ? std::clamp<int64_t>(rows, 1, kernels.few) : kernels.panel;
    panels_ = (rows + size_ - 1) / size_;
    for (int64_t panel = 0; panel < panels_; ++panel) most_ = std::max(most_, keys_of(panel).pieces());
    // Memory access costs as much as the arithmetic of eight rows.
    team_ = parts(pairs * attended * (all.d + all.e) / 16 * (rows + 8), 1, 1);
    apart_ = pairs * panels_ < kEven * team_;
    team_ = static_cast<int>(std::min<int64_t>(team_, pairs * panels_ * (apart_ ? most_ : 1)));
    workspace_ = (kernels.workspace(all) + 15) / 16 * 16;
    sums_ = most_ > 1 ? most_ * size_ * (all.e + 2) : 0;
  }

  // The floats of memory, 64-byte aligned, that run() needs.
  int64_t floats() const { return team_ * workspace_ + (apart_ ? pairs_ * panels_ : team_) * sums_; }

  // head(i) returns the arrays of pair i.
  template <class Head>
  void run(const Head& head, float* memory) const {
    if (apart_) return run_pieces(head, memory);
    parallel_items(pairs_ * panels_, team_, [&](int64_t item, int thread) {
      const AttentionHead at = head(item / panels_);
      const Keys keys = keys_of(panel_of(item));
      float* const sums = memory + team_ * workspace_ + thread * sums_;
      for (int64_t piece = 0; piece < keys.pieces(); ++piece)
        compute(at, keys, piece, sums, memory + thread * workspace_);
      if (keys.pieces() > 1) kernels_.merge(all_, at, keys.row, keys.rows, sums, keys.pieces());
    });
  }

 private:
  static constexpr int64_t kEven = 16;  // panels per thread that keep all threads busy

  // The rows of a panel, and the keys that they see.
  struct Keys {
    int64_t row, rows, begin, end, origin, size;  // `size`: of a piece
    int64_t first() const { return (origin + begin) / size; }
    int64_t pieces() const { return std::max<int64_t>((origin + end + size - 1) / size - first(), 1); }
    int64_t cut(int64_t piece) const { return std::clamp((first() + piece) * size - origin, begin, end); }
  };

  Keys keys_of(int64_t panel) const {
    const int64_t row = panel * size_, rows = std::min(size_, all_.rows() - row);
    const int64_t first = row / all_.heads + all_.low, last = (row + rows - 1) / all_.heads + all_.high;
    const int64_t begin = std::clamp<int64_t>(first, 0, all_.s);
    return {row,         rows,
            begin,       std::clamp(last + 1, begin, all_.s),
            all_.origin, few_ ? kFewRowsPiece : kPanelPiece};
  }

  int64_t panel_of(int64_t item) const { return panels_ - 1 - item % panels_; }  // the longest first

  void compute(const AttentionHead& at, const Keys& keys, int64_t piece, float* sums,
               float* workspace) const {
    float* const mine = keys.pieces() > 1 ? sums + piece * keys.rows * (all_.e + 2) : nullptr;
    const AttentionPart part{keys.row, keys.rows, keys.cut(piece), keys.cut(piece + 1), mine};
    (few_ ? kernels_.few_rows[all_.kv_format] : kernels_.panel_rows)(all_, at, part, workspace);
  }

  // Threads share the pieces of all panels.
  template <class Head>
  void run_pieces(const Head& head, float* memory) const {
    const int64_t panels = pairs_ * panels_;
    const std::unique_ptr<std::atomic<int64_t>[]> done(new std::atomic<int64_t>[panels]());
    parallel_items(panels * most_, team_, [&](int64_t item, int thread) {
      const int64_t number = item / most_, piece = item % most_;
      const Keys keys = keys_of(panel_of(number));
      if (piece >= keys.pieces()) return;
      const AttentionHead at = head(number / panels_);
      float* const sums = memory + team_ * workspace_ + number * sums_;
      compute(at, keys, piece, sums, memory + thread * workspace_);
      if (keys.pieces() > 1 && done[number].fetch_add(1) == keys.pieces() - 1)
        kernels_.merge(all_, at, keys.row, keys.rows, sums, keys.pieces());
    });
  }

  const AttentionKernels& kernels_;
  const Attention& all_;
  int64_t pairs_, size_, panels_, workspace_, sums_, most_ = 1;
  int team_;
  bool few_, apart_;
};

namespace threaded {

// head(i) returns the arrays of pair i. `few`: as for AttentionParts.
template <class Head>
void attention(const AttentionKernels& kernels, const Attention& all, int64_t pairs, const Head& head,
               std::optional<bool> few = {}) {
  const AttentionParts cut(kernels, all, pairs, few);
  const Workspace memory(cut.floats() * sizeof(float));
  cut.run(head, reinterpret_cast<float*>(memory.data()));
}

}  // namespace threaded

}  // namespace cpu
