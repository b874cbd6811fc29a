// Splits attention among threads: the rows of each head into panels and, if there are fewer panels than
// threads need, the keys of each panel.
#pragma once
#include <memory>
#include <numeric>

#include "../ops/attention.h"
#include "buffer_pool.h"
#include "parallel.h"

namespace cpu {

class __attribute__((visibility("hidden"))) AttentionParts {
 public:
  // `pairs`: key-value heads of all batch members.
  AttentionParts(const AttentionKernels& kernels, const Attention& all, int64_t pairs)
      : kernels_(kernels), all_(all), pairs_(pairs) {
    const int64_t rows = all.rows(), attended = std::min(all.s, all.high - all.low + all.t);
    few_ = rows <= kernels.few;
    size_ = few_ ? rows : kernels.panel;
    panels_ = (rows + size_ - 1) / size_;
    // Memory access costs as much as the arithmetic of eight rows.
    team_ = parts(pairs * attended * (all.d + all.e) / 16 * (rows + 8), 1, 1);
    const int64_t whole = pairs * panels_;
    if (whole < kEven * team_)
      splits_ = std::clamp<int64_t>(attended / kFewestKeys, 1, team_ / std::gcd(whole, int64_t{team_}));
    team_ = static_cast<int>(std::min<int64_t>(team_, whole * splits_));
    workspace_ = (kernels.workspace(all) + 15) / 16 * 16;
  }

  // The floats of memory, 64-byte aligned, that run() needs.
  int64_t floats() const {
    const int64_t sums = splits_ > 1 ? pairs_ * panels_ * splits_ * size_ * (all_.e + 2) : 0;
    return team_ * workspace_ + sums;
  }

  // head(i) returns the arrays of pair i.
  template <class Head>
  void run(const Head& head, float* memory) const {
    const int64_t whole = pairs_ * panels_;
    const std::unique_ptr<std::atomic<int64_t>[]> done(new std::atomic<int64_t>[whole]());
    parallel_items(whole * splits_, team_, [&](int64_t item, int thread) {
      const int64_t panel = item / splits_;
      float* const sums = memory + team_ * workspace_ + panel * splits_ * size_ * (all_.e + 2);
      const AttentionHead at = head(panel / panels_);
      const AttentionPart part = cut(panels_ - 1 - panel % panels_, item % splits_, sums);
      (few_ ? kernels_.few_rows[all_.kv_format] : kernels_.panel_rows)(all_, at, part,
                                                                       memory + thread * workspace_);
      if (splits_ > 1 && done[panel].fetch_add(1) == splits_ - 1)
        kernels_.merge(all_, at, part.row, part.rows, sums, splits_);
    });
  }

 private:
  static constexpr int64_t kEven = 16;         // panels per thread that keep all threads busy
  static constexpr int64_t kFewestKeys = 256;  // worth a separate part

  AttentionPart cut(int64_t panel, int64_t split, float* sums) const {
    const int64_t row = panel * size_, rows = std::min(size_, all_.rows() - row);
    const int64_t first = row / all_.heads + all_.low, last = (row + rows - 1) / all_.heads + all_.high;
    const int64_t begin = std::clamp<int64_t>(first, 0, all_.s);
    const int64_t keys = std::clamp<int64_t>(last + 1, begin, all_.s) - begin;
    const auto at = [&](int64_t part) {  // whole steps of the kernels, except for the last
      return part == splits_ ? begin + keys : begin + keys * part / splits_ / 16 * 16;
    };
    return {row, rows, at(split), at(split + 1), splits_ > 1 ? sums + split * rows * (all_.e + 2) : nullptr};
  }

  const AttentionKernels& kernels_;
  const Attention& all_;
  int64_t pairs_, size_, panels_, workspace_, splits_ = 1;
  int team_;
  bool few_;
};

namespace threaded {

// head(i) returns the arrays of pair i.
template <class Head>
void attention(const AttentionKernels& kernels, const Attention& all, int64_t pairs, const Head& head) {
  const AttentionParts cut(kernels, all, pairs);
  const Workspace memory(cut.floats() * sizeof(float));
  cut.run(head, reinterpret_cast<float*>(memory.data()));
}

}  // namespace threaded

}  // namespace cpu
