// Whole decoder layers as one call: cpu/decoder.h.
#pragma once
#include <list>
#include <map>

#include "../cpu/decoder_thread.h"
#include "formats.h"

namespace [[gnu::visibility("hidden")]] ops {

[[noreturn]] inline void not_implemented(const Op& op, const std::string& what) {
  PyErr_SetString(PyExc_NotImplementedError, (std::string(op.name) + ": " + what).c_str());
  throw py::error_already_set();
}

// What a layer does, but for its weights.
struct LayerNumbers {
  int64_t heads, kv_heads, head_dim;
  float norm_eps, attention_scale;
  std::optional<float> attention_softcap;
  std::optional<int64_t> window;
  std::string activation;
  bool interleaved;
  int64_t index, rotation;
};

// A layer's weights and numbers, checked once; holds what they point into.
class DecoderLayer {
 public:
  DecoderLayer(const py::dict& weights, const LayerNumbers& numbers) {
    for (const auto& [name, weight] : weights)
      unread_[py::cast<std::string>(name)] = py::reinterpret_borrow<py::object>(weight);
    read(numbers);
    read_attention();
    read_feed_forward();
    if (!unread_.empty()) not_implemented(op_, "weights have '" + unread_.begin()->first + "'");
  }

  const cpu::DecoderLayer& get() const { return layer_; }

 private:
  void read(const LayerNumbers& n) {
    const auto positive = [&](const char* name, int64_t value) {
      if (value < 1) op_.wrong_value(name, "has value " + std::to_string(value), "1 or more");
      return value;
    };
    layer_.heads = positive("heads", n.heads);
    layer_.kv_heads = positive("kv_heads", n.kv_heads);
    layer_.head_dim = positive("head_dim", n.head_dim);
    if (n.heads % n.kv_heads)
      op_.wrong_value("heads", "has value " + std::to_string(n.heads),
                      "a multiple of kv_heads=" + std::to_string(n.kv_heads));
    layer_.window = n.window ? positive("window", *n.window) : 0;
    layer_.index = positive("index", n.index + 1) - 1;
    layer_.rotation = positive("rotation", n.rotation + 1) - 1;
    layer_.eps = n.norm_eps;
    layer_.scale = n.attention_scale;
    layer_.softcap = n.attention_softcap.value_or(0.f);
    static const char* const activations[] = {"silu", "gelu_tanh", "gelu"};
    layer_.activation =
        static_cast<cpu::Activation>(choice(op_, "activation", py::str(n.activation).ptr(), activations));
    layer_.interleaved = n.interleaved;
  }

  void read_attention() {
    const int64_t q = layer_.heads * layer_.head_dim, kv = layer_.kv_heads * layer_.head_dim;
    const py::object norm = given("attention.norm");
    layer_.width = array(op_, "attention.norm", norm.ptr()).size;
    layer_.attention_norm = floats("attention.norm", norm, layer_.width);
    layer_.q = matrix("attention.q", q, layer_.width);
    layer_.k = matrix("attention.k", kv, layer_.width);
    layer_.v = matrix("attention.v", kv, layer_.width);
    layer_.output = matrix("attention.output", layer_.width, q);
    layer_.q_norm = optional_floats("attention.q_norm", layer_.head_dim);
    layer_.k_norm = optional_floats("attention.k_norm", layer_.head_dim);
    layer_.attention_post_norm = optional_floats("attention.post_norm", layer_.width);
  }

  void read_feed_forward() {
    layer_.feed_forward_norm = floats("feed_forward.norm", given("feed_forward.norm"), layer_.width);
    const py::object gate = given("feed_forward.gate");
    const Stored as_stored = stored(op_, "feed_forward.gate", gate.ptr());
    layer_.feed_forward = as_stored.ndim == 2 ? as_stored.axis(2) : 0;
    layer_.gate = matrix("feed_forward.gate", gate, layer_.feed_forward, layer_.width);
    layer_.up = matrix("feed_forward.up", layer_.feed_forward, layer_.width);
    layer_.down = matrix("feed_forward.down", layer_.width, layer_.feed_forward);
    layer_.feed_forward_post_norm = optional_floats("feed_forward.post_norm", layer_.width);
  }

  // The weight of this name, or null.
  py::object found(const std::string& name) {
    const auto at = unread_.find(name);
    if (at == unread_.end()) return {};
    py::object weight = std::move(at->second);
    unread_.erase(at);
    return weight;
  }
  py::object given(const std::string& name) {
    py::object weight = found(name);
    if (!weight) not_implemented(op_, "weights lack '" + name + "'");
    return weight;
  }

  const float* floats(const char* name, const py::object& object, int64_t n) {
    const Array a = array(op_, name, object.ptr());
    if (a.dtype != cpu::kFloat32)
      op_.wrong_type(name, std::string("has dtype ") + dtype_name(a.dtype), "float32");
    if (a.ndim != 1 || a.size != n) op_.wrong_shape(name, a, "(" + std::to_string(n) + ",)");
    kept_.push_back(object);
    return reinterpret_cast<const float*>(a.data);
  }
  const float* optional_floats(const std::string& name, int64_t n) {
    const py::object object = found(name);
    return object ? floats(name.c_str(), object, n) : nullptr;
  }

  cpu::Matrix matrix(const std::string& name, int64_t n, int64_t k) {
    return matrix(name, given(name), n, k);
  }
  cpu::Matrix matrix(const std::string& name, const py::object& object, int64_t n, int64_t k) {
    const Stored weight = stored(op_, name.c_str(), object.ptr());
    const py::ssize_t expected[] = {n, k};
    if (weight.ndim != 2 || weight.axis(2) != n || weight.axis(1) != k || !n || !k)
      op_.wrong_value(name.c_str(), "has shape " + weight.shape_text(),
                      arguments::shape_text(2, expected) + " without zeros");
    kept_.push_back(object);
    return {weight.format, weight.data(), n, k, optional_floats(name + "_bias", n)};
  }

  static constexpr Op op_{"DecoderLayer"};
  cpu::DecoderLayer layer_{};
  std::map<std::string, py::object> unread_;
  std::list<py::object> kept_;
};

// The arguments of a call, as it needs them.
class DecoderArguments {
 public:
  DecoderArguments(const Op& op, PyObject* layers, PyObject* x, PyObject* rotations, PyObject* rows)
      : op_(op), x_(array(op, "x", x)) {
    if (x_.dtype != cpu::kFloat32)
      op.wrong_type("x", std::string("has dtype ") + dtype_name(x_.dtype), "float32");
    if (x_.ndim != 2 || x_.shape[0] > cpu::kDecodeRows)
      op.wrong_shape("x", x_, "(rows, width) with at most " + std::to_string(cpu::kDecodeRows) + " rows");
    if (!has_flags(x, py::detail::npy_api::NPY_ARRAY_WRITEABLE_))
      op.wrong_value("x", "is read-only", "a writeable array");
    each("rotations", rotations, [&](PyObject* item) { rotations_.push_back(rotation(item)); });
    each("layers", layers, [&](PyObject* item) { layers_.push_back(layer(item)); });
    each("rows", rows, [&](PyObject* item) { sequences_.push_back(sequence(item)); });
    const int64_t stop = sequences_.empty() ? 0 : sequences_.back().stop;
    if (stop != x_.shape[0])
      op.wrong_value("rows", "has " + std::to_string(stop) + " rows",
                     "the rows of x, " + std::to_string(x_.shape[0]));
  }

  cpu::DecoderCall call() const {
    return {layers_.data(),
            static_cast<int64_t>(layers_.size()),
            reinterpret_cast<float*>(x_.data),
            x_.shape[0],
            rotations_.data(),
            sequences_.data(),
            static_cast<int64_t>(sequences_.size())};
  }

 private:
  template <class Take>
  void each(const char* name, PyObject* sequence, const Take& take) {
    if (!PyTuple_Check(sequence) && !PyList_Check(sequence))
      wrong_kind(op_, name, sequence, "a list or a tuple");
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence); ++i)
      take(PySequence_Fast_GET_ITEM(sequence, i));
  }

  void has_items(const char* name, PyObject* tuple, Py_ssize_t items, const char* expected) const {
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != items) wrong_kind(op_, name, tuple, expected);
  }

  cpu::Rotation rotation(PyObject* pair) const {
    has_items("rotations", pair, 2, "tuples of cos and sin");
    const Array cos = table("cos", PyTuple_GET_ITEM(pair, 0)), sin = table("sin", PyTuple_GET_ITEM(pair, 1));
    if (!same_shape(sin, cos.ndim, cos.shape)) op_.wrong_shape("sin", sin, shape_text(cos.ndim, cos.shape));
    return {reinterpret_cast<const float*>(cos.data), reinterpret_cast<const float*>(sin.data), cos.axis(1)};
  }
  Array table(const char* name, PyObject* object) const {
    const Array a = array(op_, name, object);
    if (a.dtype != cpu::kFloat32)
      op_.wrong_type(name, std::string("has dtype ") + dtype_name(a.dtype), "float32");
    if (a.ndim != 3 || a.shape[0] != x_.shape[0] || a.shape[1] != 1)
      op_.wrong_shape(name, a, "(rows, 1, pairs) with rows=" + std::to_string(x_.shape[0]));
    return a;
  }

  const cpu::DecoderLayer* layer(PyObject* object) const {
    const cpu::DecoderLayer& found = py::cast<const DecoderLayer&>(py::handle(object)).get();
    if (found.width != x_.shape[1]) op_.wrong_shape("x", x_, "(rows, " + std::to_string(found.width) + ")");
    if (found.rotation >= static_cast<int64_t>(rotations_.size()))
      op_.wrong_value("rotations", "has " + std::to_string(rotations_.size()) + " tables",
                      std::to_string(found.rotation + 1) + " or more, as a layer needs");
    if (2 * rotations_[found.rotation].pairs > found.head_dim)
      op_.wrong_value("rotations", "has " + std::to_string(rotations_[found.rotation].pairs) + " pairs",
                      "at most half of head_dim=" + std::to_string(found.head_dim));
    return &found;
  }

  cpu::Sequence sequence(PyObject* object) const {
    has_items("rows", object, 4, "tuples of start, stop, keys and values, length");
    const auto whole = [&](int i) {
      const int64_t value = PyLong_AsLongLong(PyTuple_GET_ITEM(object, i));
      if (value == -1 && PyErr_Occurred()) throw py::error_already_set();
      return value;
    };
    const Array cache = keys_and_values(PyTuple_GET_ITEM(object, 2));
    const cpu::Sequence found{whole(0), whole(1), whole(3), cache.shape[3], cache.data, cache.dtype};
    const int64_t before = sequences_.empty() ? 0 : sequences_.back().stop;
    if (found.start != before || found.stop <= found.start || found.stop > x_.shape[0])
      op_.wrong_value("rows", "has rows " + std::to_string(found.start) + " to " + std::to_string(found.stop),
                      "those of x from " + std::to_string(before) + " on");
    if (found.length < 0 || found.length > found.capacity - found.tokens())
      op_.wrong_value("rows",
                      "has a length of " + std::to_string(found.length) + " and " +
                          std::to_string(found.tokens()) + " rows",
                      "at most the cache's " + std::to_string(found.capacity));
    for (const cpu::Sequence& other : sequences_)
      if (other.cache == found.cache)
        op_.wrong_value("rows", "has a cache twice", "one of its own for each sequence");
    return found;
  }
  Array keys_and_values(PyObject* object) const {
    const Array a = array(op_, "keys and values", object);
    if (a.dtype == cpu::kBFloat16)
      op_.wrong_type("keys and values", "has dtype bfloat16", "float32 or float16");
    if (!has_flags(object, py::detail::npy_api::NPY_ARRAY_WRITEABLE_))
      op_.wrong_value("keys and values", "is read-only", "a writeable array");
    for (const cpu::DecoderLayer* layer : layers_)
      if (a.ndim != 5 || a.shape[0] <= layer->index || a.shape[1] != 2 || a.shape[2] != layer->kv_heads ||
          a.shape[4] != layer->head_dim)
        op_.wrong_shape("keys and values", a,
                        "(layers, 2, " + std::to_string(layer->kv_heads) + ", capacity, " +
                            std::to_string(layer->head_dim) + ") with layers more than " +
                            std::to_string(layer->index));
    return a;
  }

  const Op& op_;
  const Array x_;
  std::vector<cpu::Rotation> rotations_;
  std::vector<const cpu::DecoderLayer*> layers_;
  std::vector<cpu::Sequence> sequences_;
};

inline void run_layers(const cpu::DecoderCall& call) {
  const cpu::Kernels& kernels = *active.load();
  int team = cpu::most_threads();
  for (int64_t i = 0; i < call.count; ++i)
    team = std::min(team, cpu::parts(call.layers[i]->weights() / 4, call.rows, 1));
  const cpu::DecoderSizes sizes(kernels, call);
  const cpu::DecoderMemory at(sizes, call.rows, team);
  const cpu::Workspace memory(at.bytes(team));
  std::memset(memory.data() + at.done, 0, at.shared.bytes - at.done);
  auto* const begun = reinterpret_cast<cpu::Steps::Begun*>(memory.data() + at.begun);
  cpu::Steps steps(team);
  calls.fetch_add(1, std::memory_order_relaxed);
  const py::gil_scoped_release unlocked;
  cpu::on_team(team, [&](int me, int all) {
    cpu::DecoderThread thread(kernels, call, sizes, at, memory.data(), me, all);
    steps.run(static_cast<uint32_t>(call.count) * cpu::DecoderThread::kSteps, me, all, begun,
              [&](uint32_t step, uint32_t share) { thread.run(step, share); });
    if (me == 0) thread.finish();
  });
}

inline PyObject* decoder_layers(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const char* const names[] = {"layers", "x", "rotations", "rows"};
  PyObject* values[4];
  place(op, values, names, 4, 4, args, given, keywords);
  const DecoderArguments read(op, values[0], values[1], values[2], values[3]);
  const cpu::DecoderCall call = read.call();
  if (call.count && call.rows) run_layers(call);
  Py_RETURN_NONE;
}

}  // namespace ops
