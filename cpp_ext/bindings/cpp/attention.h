// Attention, and its two halves for a single query.
#pragma once
#include <cmath>
#include <cstring>

#include "../../cpu/threads/parallel_attention.h"
#include "broadcast.h"
#include "call.h"

namespace [[gnu::visibility("hidden")]] ops {

using Shape = std::vector<py::ssize_t>;

// Bytes between neighbours along an axis, counted from the last one; also for a dense array.
inline int64_t step(const Array& a, int from_last) {
  if (a.strides) return a.strides[a.ndim - from_last];
  int64_t bytes = itemsize(a.dtype);
  for (int i = 1; i < from_last; ++i) bytes *= a.axis(i);
  return bytes;
}

// A vector as float32, times a factor, padded with zeros to whole vectors.
constexpr int64_t kWholeVectors = 16;
inline std::vector<float> widen(const Array& x, float factor) {
  std::vector<float> wide((x.size + kWholeVectors - 1) / kWholeVectors * kWholeVectors);
  active.load()->attention.widen[x.dtype](wide.data(), x.data, x.size);
  for (float& value : wide) value *= factor;
  return wide;
}

// One for each query head; empty if not passed.
inline std::vector<float> sinks_of(const Array& sinks) {
  return sinks.object ? widen(sinks, 1.f) : std::vector<float>();
}

// The addresses of the arrays of each key-value head of each batch member.
class AttentionHeads {
 public:
  AttentionHeads(const Array& out, const Array& q, const Array& k, const Array& v, const Array& mask,
                 const Array& sinks, cpu::Attention& all)
      : q_(q.data),
        k_(k.data),
        v_(v.data),
        mask_(mask.object ? mask.data : nullptr),
        out_(out.data),
        sinks_(sinks_of(sinks)),
        heads_(all.heads),
        kv_heads_(k.axis(3)) {
    const int leading = out.ndim - 3;
    Shape shape(out.shape, out.shape + leading);
    shape.push_back(k.axis(3));
    std::array<Steps, 5> steps;
    const Array* const each[] = {&q, &k, &v, &out};
    for (int i = 0; i < 4; ++i) {
      broadcast(steps[i], *each[i], 3, leading, shape.data());
      steps[i][leading] = step(*each[i], 3) * (i == 0 || i == 3 ? all.heads : 1);
    }
    if (mask_)
      of_mask(mask, out, steps[4], all);
    else
      std::fill_n(steps[4].begin(), leading + 1, 0);
    walk_.emplace(leading + 1, shape.data(), steps);
    pairs_ = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  }

  int64_t pairs() const { return pairs_; }

  cpu::AttentionHead operator()(int64_t pair) const {
    const auto at = walk_->offsets(pair);
    const float* const sinks = sinks_.empty() ? nullptr : sinks_.data() + pair % kv_heads_ * heads_;
    return {q_ + at[0], k_ + at[1], v_ + at[2], mask_ ? mask_ + at[4] : nullptr, out_ + at[3], sinks};
  }

 private:
  static void of_mask(const Array& mask, const Array& out, Steps& steps, cpu::Attention& all) {
    Shape scores(out.shape, out.shape + out.ndim);
    scores.back() = all.s;
    broadcast(steps, mask, 0, out.ndim, scores.data());
    const int leading = out.ndim - 3;
    const int64_t size = itemsize(mask.dtype);
    all.mask_type = mask.dtype;
    all.mask_head = steps[leading] / size;
    all.mask_row = steps[leading + 1] / size;
    all.mask_key = steps[leading + 2] / size;
    steps[leading] *= all.heads;
  }

  const char *q_, *k_, *v_, *mask_;
  char* out_;
  std::vector<float> sinks_;
  std::optional<Walk<5>> walk_;
  int64_t heads_, kv_heads_, pairs_;
};

inline cpu::Attention attention_of(const Array& out, const Array& q, const Array& k, const Array& v) {
  cpu::Attention all{};
  all.heads = k.axis(3) ? q.axis(3) / k.axis(3) : 0;
  all.t = q.axis(2);
  all.s = k.axis(2);
  all.d = q.axis(1);
  all.e = v.axis(1);
  all.q_head = step(q, 3) / itemsize(q.dtype);
  all.q_row = step(q, 2) / itemsize(q.dtype);
  all.k_row = step(k, 2) / itemsize(k.dtype);
  all.v_row = step(v, 2) / itemsize(v.dtype);
  all.out_row = step(out, 2) / itemsize(out.dtype);
  all.out_head = step(out, 3) / itemsize(out.dtype);
  all.q_type = q.dtype;
  all.kv_format = static_cast<cpu::Format>(k.dtype);
  return all;
}

inline void set_rule(cpu::Attention& all, bool causal, std::optional<float> scale,
                     std::optional<float> softcap, std::optional<int64_t> window) {
  all.scale = scale.value_or(1.f / std::sqrt(static_cast<float>(std::max<int64_t>(all.d, 1))));
  all.softcap = softcap.value_or(0.f);
  all.see(causal, window);
}

// Accepts any strides, such as those of a model whose heads are adjacent.
template <>
inline constexpr bool kTakesStrides<kAttention> = true;

inline void attention(const Array& out, const Array& q, const Array& k, const Array& v, const Array& mask,
                      bool causal, std::optional<float> scale, std::optional<float> softcap,
                      std::optional<int64_t> window, const Array& sinks) {
  check_dtype({"attention"}, "v", v, k.dtype, false);
  cpu::Attention all = attention_of(out, q, k, v);
  set_rule(all, causal, scale, softcap, window);
  const AttentionHeads heads(out, q, k, v, mask, sinks, all);
  if (!all.s) {
    py::handle(out.object).attr("fill")(0);  // averages of no keys
    return;
  }
  run(cpu::kWorthAThread,
      [&] { cpu::threaded::attention(active.load()->attention, all, heads.pairs(), heads); });
}

// scale * keys (s, d) query (d)
inline void attention_scores(const Array& out, const Array& query, const Array& keys, float scale) {
  const cpu::AttentionKernels& kernels = active.load()->attention;
  const std::vector<float> x = widen(query, scale);
  std::vector<float> sums(query.dtype == cpu::kFloat32 ? 0 : out.size);
  float* const to = sums.empty() ? reinterpret_cast<float*>(out.data) : sums.data();
  run(out.size, query.size + 1, 64, [&](int64_t begin, int64_t end) {
    kernels.scores[keys.dtype](to + begin, x.data(), keys.data + begin * step(keys, 2),
                               step(keys, 2) / itemsize(keys.dtype), end - begin, query.size);
  });
  if (!sums.empty()) kernels.narrow[query.dtype](out.data, to, out.size, 1.f);
}

constexpr int64_t kSummedRows = 1 << 14;  // summed separately, so that a long sum keeps its digits

// weights (s) matrix (s, d)
inline void weighted_sum_rows(const Array& out, const Array& weights, const Array& matrix) {
  if (!weights.size) {
    std::memset(out.data, 0, out.nbytes());  // empty sums
    return;
  }
  const cpu::AttentionKernels& kernels = active.load()->attention;
  const std::vector<float> wide = widen(weights, 1.f);
  const int team = cpu::parts(weights.size, out.size, 64);
  const int64_t rows = std::min((weights.size + team - 1) / team, kSummedRows);
  const int64_t parts = (weights.size + rows - 1) / rows;
  const int64_t each = (out.size + kWholeVectors - 1) / kWholeVectors * kWholeVectors;
  std::vector<float> sums(each * parts);
  calls.fetch_add(1, std::memory_order_relaxed);
  {
    const Unlocked unlocked;
    cpu::parallel_items(parts, team, [&](int64_t part, int) {
      const int64_t row = part * rows;
      kernels.add_rows[matrix.dtype](
          sums.data() + part * each, wide.data() + row, matrix.data + row * step(matrix, 2),
          step(matrix, 2) / itemsize(matrix.dtype), std::min(rows, weights.size - row), out.size);
    });
    for (int64_t i = each; i < each * parts; ++i) sums[i % each] += sums[i];
  }
  kernels.narrow[weights.dtype](out.data, sums.data(), out.size, 1.f);
}

}  // namespace ops
