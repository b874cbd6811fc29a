// A model's decoding step in Python: layers whose weights are on a device, and the graph of a step.
#pragma once

#include <pybind11/stl.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "../../bindings/layer_class.h"
#include "call.h"
#include "decoder_step.h"

namespace airllm::cuda {

// A DeviceArray, or a Quantized of one, on the device in use.
inline Operand on_device(const Op& op, const char* name, PyObject* object) {
  Operand x = read_stored(op, name, object);
  if (x.library != Library::own || x.device != default_device())
    op.wrong_value(name, "is in " + x.place(),
                   "a DeviceArray on " + device_name(default_device()) + " (pass " + Vendor::kModule +
                       ".to_device(" + name + "))");
  return x;
}

inline const float* device_vector(const Op& op, const char* name, PyObject* object, int64_t n) {
  const Operand x = on_device(op, name, object);
  if (x.block || x.dtype != DType::f32) op.wrong_type(name, "has another dtype", "float32");
  if (x.shape != Shape{n}) op.wrong_value(name, "has shape " + tuple_text(x.shape), tuple_text({n}));
  return reinterpret_cast<const float*>(x.data);
}

inline int64_t rows_of_matrix(const Op& op, const char* name, PyObject* object) {
  const Operand x = on_device(op, name, object);
  return x.shape.size() == 2 ? x.shape[0] : 0;
}

inline cpu::Matrix device_matrix(const Op& op, const char* name, PyObject* object, int64_t n, int64_t k) {
  const Operand x = on_device(op, name, object);
  if (x.shape != Shape{n, k} || !n || !k)
    op.wrong_value(name, "has shape " + tuple_text(x.shape), tuple_text({n, k}) + " without zeros");
  return {cpu::Format(format_of(x)), x.data, n, k, nullptr};
}

// A layer's weights on a device.
struct DeviceWeights {
  static constexpr Op op{"DeviceLayer"};
  static constexpr bool kExperts = false, kSinks = false, kLatents = false, kRecurrent = false;

  static int64_t size(const char* name, PyObject* object) { return on_device(op, name, object).size; }
  static int64_t rows(const char* name, PyObject* object) { return rows_of_matrix(op, name, object); }
  static const float* vector(const char* name, PyObject* object, int64_t n) {
    return device_vector(op, name, object, n);
  }
  static cpu::Matrix matrix(const char* name, PyObject* object, int64_t n, int64_t k) {
    return device_matrix(op, name, object, n, k);
  }
};

struct DeviceLayer : arguments::LayerWeights<DeviceWeights> {
  using LayerWeights::LayerWeights;
  const int device = default_device();
};

// The stored tables and numbers before and after the layers; `kept` owns them.
inline cpu::DecoderEnds decoder_ends(const Op& op, const std::vector<py::object>& kept, float eps,
                                     float scale, float softcap) {
  PyObject *const embedding = kept[0].ptr(), *const norm = kept[1].ptr(), *const output = kept[2].ptr();
  const int64_t width = on_device(op, "output_norm", norm).size;
  const int64_t tokens = rows_of_matrix(op, "embedding", embedding);
  return {device_matrix(op, "embedding", embedding, tokens, width),
          device_matrix(op, "output", output, rows_of_matrix(op, "output", output), width),
          device_vector(op, "output_norm", norm, width),
          {eps, false, false},
          scale,
          softcap};
}

// The cosines and sines of each rotation, (positions, pairs).
class AngleTables {
 public:
  AngleTables(const Op& op, const py::sequence& tables) : op_(op) {
    for (const py::handle item : tables) {
      const auto [cos, sin] = item.cast<std::pair<py::object, py::object>>();
      cos_.push_back(table("cos", cos));
      sin_.push_back(table("sin", sin));
      if (sin_.back().shape != cos_.back().shape || cos_.back().axis(2) != cos_.front().axis(2))
        op_.wrong_value("sin", "has shape " + tuple_text(sin_.back().shape), tuple_text(cos_.back().shape));
    }
    if (cos_.empty()) op_.wrong_value("tables", "has 0 rotations", "one or more");
  }

  int64_t positions() const { return cos_.front().axis(2); }
  std::vector<int64_t> pairs() const {
    std::vector<int64_t> found;
    for (const Operand& each : cos_) found.push_back(each.axis(1));
    return found;
  }

  void give_to(CapturedStep& step) const {
    if (pairs() != step.plan().pairs || positions() > step.plan().capacity)
      op_.wrong_value(
          "tables", "have shape " + tuple_text(cos_.front().shape),
          "at most capacity=" + std::to_string(step.plan().capacity) + " positions, and the pairs of before");
    for (size_t i = 0; i < cos_.size(); ++i)
      step.set_angles(i, reinterpret_cast<const float*>(cos_[i].data),
                      reinterpret_cast<const float*>(sin_[i].data), positions());
  }

 private:
  Operand table(const char* name, const py::object& object) const {
    Operand found = from_host(op_, name, object.ptr(), {DTypes{DType::f32}});
    if (found.ndim() != 2)
      op_.wrong_value(name, "has shape " + tuple_text(found.shape), "(positions, pairs)");
    return found;
  }

  const Op& op_;
  std::vector<Operand> cos_, sin_;
};

// A model's step for one sequence, captured as a graph.
class DecoderGraph {
 public:
  DecoderGraph(py::tuple layers, py::object embedding, py::object output_norm, py::object output,
               const py::sequence& tables, int64_t capacity, const std::string& cache_dtype, float norm_eps,
               float embedding_scale, std::optional<float> logit_softcap)
      : layers_(std::move(layers)), ends_{std::move(embedding), std::move(output_norm), std::move(output)} {
    const AngleTables angles(op_, tables);
    StepPlan plan{layers_of(layers_),
                  decoder_ends(op_, ends_, norm_eps, embedding_scale, logit_softcap.value_or(0.f)),
                  angles.pairs(), capacity, find_dtype(cache_dtype)};
    check(plan);
    const int device = default_device();
    DeviceGuard guard(device);
    step_.emplace(std::move(plan), device);
    set_angles(tables);
  }

  // Sets the angles of all positions of the steps that follow.
  void set_angles(const py::sequence& tables) {
    const AngleTables angles(op_, tables);
    angles.give_to(*step_);
    positions_ = angles.positions();
  }

  // Computes the logits (1, vocabulary) after `token`, and stores its key and value at `position`.
  py::object step(int64_t token, int64_t position) {
    require_devices();  // throws in a forked child
    within("token", token, step_->plan().ends.embedding.n);
    within("position", position, positions_);
    const py::object logits = new_numpy(numpy_dtype(DType::f32), {1, step_->plan().vocabulary()});
    auto* const to = reinterpret_cast<float*>(py::detail::array_proxy(logits.ptr())->data);
    const arguments::Unlocked released;
    step_->run(token, position, to);
    return logits;
  }

 private:
  static void within(const char* name, int64_t value, int64_t end) {
    if (value < 0 || value >= end)
      op_.wrong_value(name, "has value " + std::to_string(value), "0 to " + std::to_string(end - 1));
  }

  static DType find_dtype(const std::string& name) {
    if (name != "f32" && name != "f16")
      op_.wrong_value("cache_dtype", "has value '" + name + "'", "f32 or f16");
    return name == "f32" ? DType::f32 : DType::f16;
  }

  static std::vector<const cpu::DecoderLayer*> layers_of(const py::tuple& layers) {
    std::vector<const cpu::DecoderLayer*> found;
    for (const py::handle layer : layers) {
      const auto& one = layer.cast<const DeviceLayer&>();
      if (one.device != default_device())
        op_.wrong_value("layers", "are on " + device_name(one.device), device_name(default_device()));
      found.push_back(&one.get());
    }
    return found;
  }

  static void check(const StepPlan& plan) {
    if (plan.layers.empty()) op_.wrong_value("layers", "has no layer", "one or more");
    within("capacity", plan.capacity - 1, INT32_MAX);
    for (const cpu::DecoderLayer* layer : plan.layers) {
      if (layer->width != plan.width())
        op_.wrong_value("layers", "has a layer of width " + std::to_string(layer->width),
                        "that of the embedding, " + std::to_string(plan.width()));
      const auto rotation = size_t(layer->rotation);
      if (rotation >= plan.pairs.size() || 2 * plan.pairs[rotation] > layer->head_dim)
        op_.wrong_value("tables", "has " + std::to_string(plan.pairs.size()) + " rotations",
                        "number " + std::to_string(rotation) +
                            ", with pairs up to half of head_dim=" + std::to_string(layer->head_dim));
    }
  }

  static constexpr Op op_{"DecoderGraph"};
  const py::tuple layers_;
  const std::vector<py::object> ends_;
  std::optional<CapturedStep> step_;
  int64_t positions_ = 0;
};

inline void define_decoder_graph(py::module_& module) {
  arguments::define_layer<DeviceLayer>(
      module, "DeviceLayer",
      "A layer ready for DecoderGraph: its weights by name, as airllm.memory.layers has them, but in\n"
      "DeviceArrays. NotImplementedError for weights that are none of it.");
  py::class_<DecoderGraph>(
      module, "DecoderGraph",
      "A model's step of decoding as a CUDA graph, for one sequence of up to `capacity` "
      "tokens: DeviceLayers,\nstored tables embedding and output (vocabulary, width) and "
      "the norm between, on the device, and for each\nrotation (cos, sin), each "
      "(positions, pairs), float32. Keys and values are kept there, as \"f32\" or "
      "\"f16\".")
      .def(py::init<py::tuple, py::object, py::object, py::object, py::sequence, int64_t, std::string, float,
                    float, std::optional<float>>(),
           py::arg("layers"), py::arg("embedding"), py::arg("output_norm"), py::arg("output"),
           py::arg("tables"), py::kw_only(), py::arg("capacity"), py::arg("cache_dtype"), py::arg("norm_eps"),
           py::arg("embedding_scale") = 1.f, py::arg("logit_softcap") = py::none())
      .def("set_angles", &DecoderGraph::set_angles, py::arg("tables"),
           "Other cosines and sines, for the positions that steps may have from now on.")
      .def("step", &DecoderGraph::step, py::arg("token"), py::arg("position"),
           "Logits (1, vocabulary), float32, after a token, whose key and value are kept at `position`: one "
           "launch.");
}

}  // namespace airllm::cuda
