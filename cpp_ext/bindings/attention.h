// Attention, and its two halves for a single query.
#pragma once
#include <cmath>
#include <cstring>

#include "../cpu/attention_parts.h"
#include "broadcast.h"
#include "run.h"

namespace [[gnu::visibility("hidden")]] ops {

using Shape = std::vector<py::ssize_t>;

inline std::string axes(const char* names, std::initializer_list<std::pair<const char*, int64_t>> known) {
  std::string text = std::string("(") + names + ")";
  for (const auto& [name, size] : known)
    text += (text.back() == ')' ? " with " : ", ") + std::string(name) + "=" + std::to_string(size);
  return text;
}

// The arrays of a call, and the shape (... h t e) of its result.
struct AttentionArrays {
  Array q, k, v, mask;  // mask.object may be null
  Shape shape;

  int64_t batch_axes() const { return static_cast<int64_t>(shape.size()) - 3; }

  AttentionArrays(const Op& op, PyObject* q_, PyObject* k_, PyObject* v_, PyObject* mask_)
      : q(strided(op, "q", q_)), k(strided(op, "k", k_)), v(strided(op, "v", v_)) {
    check_dtype(op, "v", v, k, false);
    if (q.ndim < 3) op.wrong_shape("q", q, axes("... h t d", {}));
    const int64_t h = q.axis(3), d = q.axis(1);
    if (k.ndim < 3 || k.axis(1) != d) op.wrong_shape("k", k, axes("... g s d", {{"d", d}}));
    const int64_t g = k.axis(3), s = k.axis(2);
    if (g ? h % g : h)
      op.wrong_shape("k", k,
                     axes("... g s d", {}) + " with h a multiple of g, found h=" + std::to_string(h) +
                         ", g=" + std::to_string(g));
    if (v.ndim < 3 || v.axis(3) != g || v.axis(2) != s)
      op.wrong_shape("v", v, axes("... g s e", {{"g", g}, {"s", s}}));
    for (const Input& in : {Input{"q", &q, false}, {"k", &k, false}, {"v", &v, false}}) join(op, in);
    shape.insert(shape.end(), {h, q.axis(2), v.axis(1)});
    if (present(mask_)) mask = strided(op, "mask", mask_, true);
  }

  // Leading axes, broadcast.
  void join(const Op& op, const Input& in) {
    const Array& a = *in.array;
    const size_t leading = a.ndim - 3;
    if (leading > shape.size()) shape.insert(shape.begin(), leading - shape.size(), 1);
    for (size_t i = 0; i < leading; ++i) {
      py::ssize_t& size = shape[shape.size() - leading + i];
      if (a.shape[i] != 1 && size != 1 && a.shape[i] != size)
        op.wrong_shape(in.name, a,
                       "leading axes that broadcast with " + shape_text(shape.size(), shape.data()));
      if (size == 1) size = a.shape[i];
    }
  }
};

// Bytes between neighbours along an axis counted from the last one, of a dense array too.
inline int64_t step(const Array& a, int from_last) {
  if (a.strides) return a.strides[a.ndim - from_last];
  int64_t bytes = itemsize(a.dtype);
  for (int i = 1; i < from_last; ++i) bytes *= a.axis(i);
  return bytes;
}

// Where the arrays of each key-value head of each member of the batch begin.
class AttentionHeads {
 public:
  AttentionHeads(const Op& op, const AttentionArrays& arrays, const Array& out, cpu::Attention& all)
      : arrays_(arrays), out_(out) {
    const int leading = static_cast<int>(arrays.batch_axes());
    const int64_t g = arrays.k.axis(3);
    Shape shape(arrays.shape.begin(), arrays.shape.begin() + leading);
    shape.push_back(g);
    std::array<Steps, 5> steps;
    const Array* const each[] = {&arrays.q, &arrays.k, &arrays.v, &out};
    for (int i = 0; i < 4; ++i) {
      broadcast(steps[i], *each[i], 3, leading, shape.data());
      steps[i][leading] = step(*each[i], 3) * (i == 0 || i == 3 ? all.heads : 1);
    }
    if (arrays.mask.object)
      of_mask(op, steps[4], leading, all);
    else
      std::fill_n(steps[4].begin(), leading + 1, 0);
    walk_.emplace(leading + 1, shape.data(), steps);
    pairs_ = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  }

  int64_t pairs() const { return pairs_; }

  cpu::AttentionHead operator()(int64_t pair) const {
    const auto at = walk_->offsets(pair);
    const char* const mask = arrays_.mask.object ? arrays_.mask.data + at[4] : nullptr;
    return {arrays_.q.data + at[0], arrays_.k.data + at[1], arrays_.v.data + at[2], mask, out_.data + at[3]};
  }

 private:
  void of_mask(const Op& op, Steps& steps, int leading, cpu::Attention& all) {
    const Array& mask = arrays_.mask;
    Shape scores = arrays_.shape;
    scores.back() = all.s;
    if (!broadcast(steps, mask, 0, leading + 3, scores.data()))
      op.wrong_shape("mask", mask,
                     axes("... h t s", {{"h", all.heads * arrays_.k.axis(3)}, {"t", all.t}, {"s", all.s}}));
    const int64_t size = itemsize(mask.dtype);
    all.mask_type = mask.dtype;
    all.mask_head = steps[leading] / size;
    all.mask_row = steps[leading + 1] / size;
    all.mask_key = steps[leading + 2] / size;
    steps[leading] *= all.heads;
  }

  const AttentionArrays& arrays_;
  const Array& out_;
  std::optional<Walk<5>> walk_;
  int64_t pairs_;
};

inline cpu::Attention attention_of(const AttentionArrays& arrays) {
  const Array &q = arrays.q, &k = arrays.k, &v = arrays.v;
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
  all.q_type = q.dtype;
  all.kv_format = static_cast<cpu::Format>(k.dtype);
  return all;
}

// A caller's `out` may have any strides, as that of a model whose heads lie beside each other.
inline results::Result result_of(const Op& op, PyObject* out, const AttentionArrays& arrays,
                                 std::initializer_list<Input> inputs) {
  const int ndim = static_cast<int>(arrays.shape.size());
  if (!present(out)) return results::result(op, out, arrays.q, ndim, arrays.shape.data(), inputs);
  return {checked_out(op, out, arrays.q.dtype, ndim, arrays.shape.data(), inputs, "out", true),
          py::reinterpret_borrow<py::object>(out)};
}

inline void read_options(const Op& op, cpu::Attention& all, PyObject* scale, PyObject* softcap_, bool causal,
                         PyObject* window) {
  all.scale = optional_number(op, "scale", scale)
                  .value_or(1.f / std::sqrt(static_cast<float>(std::max<int64_t>(all.d, 1))));
  const std::optional<float> softcap = optional_number(op, "softcap", softcap_);
  if (softcap && !(*softcap > 0))
    op.wrong_value("softcap", "has value " + std::to_string(*softcap), "more than 0");
  all.softcap = softcap.value_or(0.f);
  all.see(causal, optional_count(op, "window", window));
}

inline PyObject* attention(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const char* const names[] = {"q", "k", "v", "mask", "causal", "scale", "softcap", "window", "out"};
  PyObject* values[9];
  place(op, values, names, 8, 3, args, given, keywords);
  const AttentionArrays arrays(op, values[0], values[1], values[2], values[3]);
  cpu::Attention all = attention_of(arrays);
  read_options(op, all, values[5], values[6], flag(op, "causal", values[4], false), values[7]);
  const Array& mask = arrays.mask;
  const Input q{"q", &arrays.q, false}, k{"k", &arrays.k, false}, v{"v", &arrays.v, false},
      m{"mask", mask.object ? &mask : &arrays.q, false};
  results::Result out = result_of(op, values[8], arrays, {q, k, v, m});
  all.out_row = step(out, 2) / itemsize(out.dtype);
  all.out_head = step(out, 3) / itemsize(out.dtype);
  const AttentionHeads heads(op, arrays, out, all);
  if (!out.size || !all.s) {
    if (out.size) py::handle(out.object).attr("fill")(0);  // averages of nothing
    return out.give();
  }
  run(cpu::kWorthAThread,
      [&] { cpu::threaded::attention(active.load()->attention, all, heads.pairs(), heads); });
  return out.give();
}

constexpr int64_t kWholeVectors = 16;

// A vector as float32, times a factor, with zeros up to whole vectors.
inline std::vector<float> widened(const Array& x, float factor) {
  std::vector<float> wide((x.size + kWholeVectors - 1) / kWholeVectors * kWholeVectors);
  active.load()->attention.widen[x.dtype](wide.data(), x.data, x.size);
  for (float& value : wide) value *= factor;
  return wide;
}

inline void check_vector(const Op& op, const char* name, const Array& a, const char* axis) {
  if (a.ndim != 1) op.wrong_shape(name, a, axes(axis, {}));
}

// scale * keys (s, d) query (d)
inline PyObject* attention_scores(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const char* const names[] = {"query", "keys", "scale", "out"};
  PyObject* values[4];
  place(op, values, names, 3, 2, args, given, keywords);
  const Array query = array(op, "query", values[0]), keys = strided(op, "keys", values[1]);
  check_vector(op, "query", query, "d");
  if (keys.ndim != 2 || keys.axis(1) != query.size)
    op.wrong_shape("keys", keys, axes("s d", {{"d", query.size}}));
  const float scale = number(op, "scale", values[2], 1.f);
  results::Result out = results::result(op, values[3], query, 1, keys.shape,
                                        {{"query", &query, false}, {"keys", &keys, false}});
  if (!out.size) return out.give();
  const cpu::AttentionKernels& kernels = active.load()->attention;
  const std::vector<float> x = widened(query, scale);
  std::vector<float> sums(query.dtype == cpu::kFloat32 ? 0 : out.size);
  float* const to = sums.empty() ? reinterpret_cast<float*>(out.data) : sums.data();
  run(out.size, query.size + 1, 64, [&](int64_t begin, int64_t end) {
    kernels.scores[keys.dtype](to + begin, x.data(), keys.data + begin * step(keys, 2),
                               step(keys, 2) / itemsize(keys.dtype), end - begin, query.size);
  });
  if (!sums.empty()) kernels.narrow[query.dtype](out.data, to, out.size, 1.f);
  return out.give();
}

constexpr int64_t kSummedRows = 1 << 14;  // apart from others, so that a long sum keeps its digits

// weights (s) matrix (s, d)
inline PyObject* weighted_sum_rows(const Op& op, PyObject* const* args, Py_ssize_t given,
                                   PyObject* keywords) {
  static const char* const names[] = {"weights", "matrix", "out"};
  PyObject* values[3];
  place(op, values, names, 2, 2, args, given, keywords);
  const Array weights = array(op, "weights", values[0]), matrix = strided(op, "matrix", values[1]);
  check_vector(op, "weights", weights, "s");
  if (matrix.ndim != 2 || matrix.shape[0] != weights.size)
    op.wrong_shape("matrix", matrix, axes("s d", {{"s", weights.size}}));
  results::Result out = results::result(op, values[2], weights, 1, matrix.shape + 1,
                                        {{"weights", &weights, false}, {"matrix", &matrix, false}});
  if (!out.size || !weights.size) {
    if (out.size) std::memset(out.data, 0, out.nbytes());  // sums of nothing
    return out.give();
  }
  const cpu::AttentionKernels& kernels = active.load()->attention;
  const std::vector<float> wide = widened(weights, 1.f);
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
  return out.give();
}

}  // namespace ops
