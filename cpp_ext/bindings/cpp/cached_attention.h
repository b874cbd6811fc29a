// Attention to the keys and values of a layer's cache, in their stored form.
#pragma once
#include "attention.h"
#include "formats.h"

namespace [[gnu::visibility("hidden")]] ops {

// The attention of q (heads, t, d) to the first `length` tokens of kept (2, kv_heads, capacity, d), or (1,
// kv_heads, capacity, d) if values are the first `value_dim` values of keys, unless that is 0.
inline cpu::Attention attention_of(const Op& op, const Array& q, const Stored& kept, int64_t length,
                                   int64_t value_dim) {
  if (q.ndim != 3) op.wrong_shape("q", q, "(h t d)");
  cpu::Attention all{};
  const int64_t h = q.axis(3), t = all.t = q.axis(2), d = all.d = q.axis(1), runs = value_dim ? 1 : 2;
  if (kept.ndim != 4 || kept.shape[0] != runs || !kept.shape[1] || h % kept.shape[1] || kept.shape[3] != d)
    op.wrong_value("kept", "has shape " + kept.shape_text(),
                   "(" + std::to_string(runs) + ", g, capacity, " + std::to_string(d) +
                       ") with h=" + std::to_string(h) + " a multiple of g");
  if (value_dim > d || value_dim % cpu::kBlocks[kept.format].values)
    op.wrong_value("value_dim", "has value " + std::to_string(value_dim),
                   "whole blocks of at most " + std::to_string(d) + " values");
  all.e = value_dim ? value_dim : d;
  if (length < t || length > kept.shape[2])
    op.wrong_value("length", "has value " + std::to_string(length),
                   std::to_string(t) + " to " + std::to_string(kept.shape[2]));
  all.heads = h / kept.shape[1];
  all.s = length;
  all.q_head = step(q, 3) / itemsize(q.dtype);
  all.q_row = step(q, 2) / itemsize(q.dtype);
  all.k_row = all.v_row = d / cpu::kBlocks[kept.format].values;
  all.q_type = q.dtype;
  all.kv_format = kept.format;
  return all;
}

// One for each head of q.
inline std::vector<float> sinks_of(const Op& op, PyObject* value, const Array& q) {
  if (!present(value)) return {};
  const Array sinks = array(op, "sinks", value);
  check_dtype(op, "sinks", sinks, q.dtype, true);
  if (sinks.ndim != 1 || sinks.size != q.axis(3))
    op.wrong_shape("sinks", sinks, "(h) with h=" + std::to_string(q.axis(3)));
  return sinks_of(sinks);
}

inline int64_t origin_of(const Op& op, PyObject* value) {
  if (!present(value)) return 0;
  const int64_t origin = PyLong_AsLongLong(value);
  if (origin == -1 && PyErr_Occurred()) throw py::error_already_set();
  if (origin < 0 || origin % cpu::kFewRowsPiece)
    op.wrong_value("origin", "has value " + std::to_string(origin),
                   "a multiple of " + std::to_string(cpu::kFewRowsPiece));
  return origin;
}

// The last of `length` tokens attend to themselves and to all tokens before them. `origin`: the position of
// the first of them; `few_rows`: which kernels the rows of q go through, by their number if absent;
// `value_dim`: values are the first so many values of keys.
inline PyObject* cached_attention(const Op& op, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  static const char* const names[] = {"q",      "kept",  "length", "out",      "scale",    "softcap",
                                      "window", "sinks", "origin", "few_rows", "value_dim"};
  PyObject* values[11];
  place(op, values, names, 4, 4, args, nargs, keywords);
  const Array q = strided_array(op, "q", values[0]);
  const Stored cache = read_cache(op, "kept", values[1]);
  const int64_t value_dim = optional_count(op, "value_dim", values[10]).value_or(0);
  cpu::Attention all =
      attention_of(op, q, cache, optional_count(op, "length", values[2]).value_or(0), value_dim);
  set_rule(all, true, optional_number(op, "scale", values[4]), optional_positive(op, "softcap", values[5]),
           optional_count(op, "window", values[6]));
  all.origin = origin_of(op, values[8]);
  std::optional<bool> few;
  if (present(values[9])) few = flag(op, "few_rows", values[9], false);
  const std::vector<float> sinks = sinks_of(op, values[7], q);
  const py::ssize_t shape[] = {q.shape[0], q.shape[1], static_cast<py::ssize_t>(all.e)};
  const Array out = check_out(op, values[3], q.dtype, 3, shape,
                              {{"q", &q, false}, {"kept", &cache.array, false}}, "out", true);
  all.out_head = step(out, 3) / itemsize(out.dtype);
  all.out_row = step(out, 2) / itemsize(out.dtype);
  const int64_t heads = cache.shape[1], bytes = cache.shape[2] * cache.row_bytes();
  const auto head = [&](int64_t i) -> cpu::AttentionHead {
    const char* const keys = cache.data() + i * bytes;
    const int64_t first = i * all.heads;
    return {q.data + first * step(q, 3),
            keys,
            value_dim ? keys : keys + heads * bytes,
            nullptr,
            out.data + first * step(out, 3),
            sinks.empty() ? nullptr : sinks.data() + first};
  };
  if (out.size)
    run(cpu::kWorthAThread,
        [&] { cpu::threaded::attention(active.load()->attention, all, heads, head, few); });
  Py_RETURN_NONE;
}

}  // namespace ops
