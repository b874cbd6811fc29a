// A whole decoding step, from tokens to logits, as one call.
#pragma once
#include <array>

#include "decoder.h"

namespace [[gnu::visibility("hidden")]] ops {

// What does not change from token to token, checked once: the layers, the parts before and after them, and
// their memory sizes.
class DecoderPlan {
 public:
  DecoderPlan(py::tuple layers, py::object embedding, py::object output_norm, py::object output,
              float norm_eps, float embedding_scale, std::optional<float> logit_softcap, float logit_scale,
              const std::string& norm, bool norm_bias)
      : kept_(std::move(layers)),
        tables_{std::move(embedding), std::move(output_norm), std::move(output)},
        layers_(layers_of(kept_)),
        ends_(read_ends({norm_eps, norm == "layer", norm_bias}, embedding_scale, logit_softcap.value_or(0.f),
                        logit_scale)),
        kernels_(active.load()),
        sizes_(*kernels_, layers_.data(), static_cast<int64_t>(layers_.size()), &ends_) {
    if (layers_.empty()) op_.wrong_value("layers", "has no layer", "one or more");
    for (const cpu::DecoderLayer* layer : layers_)
      if (layer->width != width())
        op_.wrong_value("layers", "has a layer of width " + std::to_string(layer->width),
                        "that of the embedding, " + std::to_string(width()));
  }

  const Layers& layers() const { return layers_; }
  const cpu::DecoderEnds& ends() const { return ends_; }
  int64_t width() const { return ends_.embedding.k; }

  // The sizes for these kernels; those of another instruction set may need more memory than planned.
  cpu::DecoderSizes sizes(const cpu::Kernels& kernels) const {
    if (&kernels == kernels_) return sizes_;
    return {kernels, layers_.data(), static_cast<int64_t>(layers_.size()), &ends_};
  }

 private:
  cpu::DecoderEnds read_ends(cpu::NormKind kind, float scale, float softcap, float logit_scale) const {
    PyObject *const embedding = tables_[0].ptr(), *const norm = tables_[1].ptr(),
                    *const output = tables_[2].ptr();
    const int64_t size = array(op_, "output_norm", norm).size, width = kind.bias ? size / 2 : size;
    return {stored_matrix(op_, "embedding", embedding, rows_of(op_, "embedding", embedding), width),
            stored_matrix(op_, "output", output, rows_of(op_, "output", output), width),
            float_vector(op_, "output_norm", norm, size),
            kind,
            scale,
            softcap,
            logit_scale};
  }

  static constexpr Op op_{"DecoderPlan"};
  const py::tuple kept_;
  const std::array<py::object, 3> tables_;
  const Layers layers_;
  const cpu::DecoderEnds ends_;
  const cpu::Kernels* const kernels_;
  const cpu::DecoderSizes sizes_;
};

// Token ids, at most kDecodeRows of them; or a single id.
struct TokenIds {
  std::array<int64_t, cpu::kDecodeRows> ids;
  int64_t count = 0;
  bool single;

  TokenIds(const Op& op, PyObject* tokens, int64_t vocabulary)
      : single(PyIndex_Check(tokens) && !is_array(tokens)) {
    if (single) {
      add(op, tokens, vocabulary);
      return;
    }
    const py::tuple items = items_of(op, "tokens", tokens);
    if (items.size() > cpu::kDecodeRows)
      op.wrong_value("tokens", "has " + std::to_string(items.size()) + " tokens",
                     "at most " + std::to_string(cpu::kDecodeRows));
    for (const py::handle item : items) add(op, item.ptr(), vocabulary);
    if (!count) op.wrong_value("tokens", "is empty", "one token or more");
  }

 private:
  void add(const Op& op, PyObject* item, int64_t vocabulary) {
    if (!PyIndex_Check(item) || is_array(item)) wrong_kind(op, "tokens", item, "whole numbers");
    const int64_t id = PyLong_AsLongLong(item);
    if (id == -1 && PyErr_Occurred()) throw py::error_already_set();
    if (id < 0 || id >= vocabulary)
      op.wrong_value("tokens", "has value " + std::to_string(id), "0 to " + std::to_string(vocabulary - 1));
    ids[count++] = id;
  }
};

inline results::Result new_floats(const std::vector<py::ssize_t>& shape) {
  return new_result(kNumpyFloat32, cpu::kFloat32, static_cast<int>(shape.size()), shape.data());
}

// Runs all steps and calls reduce(change) after each half of a layer: this process has a share of the heads
// and of the feed-forward part, and reduce() sums the results of all processes.
inline void run_reduced(const Op& op, DecoderRun& run, const cpu::DecoderCall& call,
                        const cpu::DecoderSizes& sizes, PyObject* reduce, PyObject* change) {
  if (!PyCallable_Check(reduce)) wrong_kind(op, "reduce", reduce, "a function of an array, or None");
  const uint32_t each = cpu::DecoderThread::steps_per_layer(sizes);
  uint32_t step = 0;
  for (uint32_t layer = 0, end; layer < call.count; ++layer) {
    end = layer * each;
    for (const uint32_t half :
         {cpu::DecoderThread::first_half(sizes), cpu::DecoderThread::second_half(sizes)}) {
      run.go(step, end += half);
      call_into_python([&] { return PyObject_CallOneArg(reduce, change); });
      step = end;
    }
  }
  run.go(step, cpu::DecoderThread::steps(call, sizes));
}

inline PyObject* decode_step(const Op& op, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  static const char* const names[] = {"plan", "tokens", "rotations", "rows", "reduce", "all_rows", "inputs"};
  PyObject* values[7];
  place(op, values, names, 7, 4, args, nargs, keywords);
  const auto& plan = py::cast<const DecoderPlan&>(py::handle(values[0]));
  const TokenIds tokens(op, values[1], plan.ends().embedding.n);
  const DecoderArguments read(op, plan.layers(), tokens.count, plan.width(), values[2], values[3], values[6]);
  cpu::DecoderCall call = read.call();
  call.logits_of_all_rows = flag(op, "all_rows", values[5], false);
  const int64_t vocabulary = plan.ends().output.n;
  results::Result logits =
      tokens.single ? new_floats({vocabulary}) : new_floats({call.logit_rows(), vocabulary});
  call.ends = &plan.ends();
  call.tokens = tokens.ids.data();
  call.logits = reinterpret_cast<float*>(logits.data);
  std::optional<results::Result> change;
  if (present(values[4])) {
    change = new_floats({call.rows, call.width});
    call.change = reinterpret_cast<float*>(change->data);
  }
  const cpu::Kernels& kernels = *active.load();
  const cpu::DecoderSizes sizes = plan.sizes(kernels);
  DecoderRun run(kernels, call, sizes);
  if (change)
    run_reduced(op, run, call, sizes, values[4], change->object);
  else
    run.go(0, cpu::DecoderThread::steps(call, sizes));
  return logits.give();
}

}  // namespace ops
