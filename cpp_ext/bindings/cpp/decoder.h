// Whole decoder layers as one call: cpu/decoder/decoder.h.
#pragma once
#include "../../cpu/decoder/thread.h"
#include "../layer_class.h"
#include "formats.h"

namespace [[gnu::visibility("hidden")]] ops {

// A vector (n) of float32; the caller keeps it alive.
inline const float* float_vector(const Op& op, const char* name, PyObject* object, int64_t n) {
  const Array a = array(op, name, object);
  if (a.dtype != cpu::kFloat32)
    op.wrong_type(name, std::string("has dtype ") + dtype_name(a.dtype), "float32");
  if (a.ndim != 1 || a.size != n) op.wrong_shape(name, a, "(" + std::to_string(n) + ",)");
  return reinterpret_cast<const float*>(a.data);
}

// The rows of a stored matrix; 0 if the array is not a matrix.
inline int64_t rows_of(const Op& op, const char* name, PyObject* object) {
  const Stored weight = read_stored(op, name, object);
  return weight.ndim == 2 ? weight.axis(2) : 0;
}

// A weight (n, k) without a bias; the caller keeps it alive.
inline cpu::Matrix stored_matrix(const Op& op, const char* name, PyObject* object, int64_t n, int64_t k) {
  const Stored weight = read_stored(op, name, object);
  const py::ssize_t expected[] = {n, k};
  if (weight.ndim != 2 || weight.axis(2) != n || weight.axis(1) != k || !n || !k)
    op.wrong_value(name, "has shape " + weight.shape_text(),
                   arguments::shape_text(2, expected) + " without zeros");
  return {weight.format, weight.data(), n, k, nullptr, weight.interleaved};
}

// A layer's weights in host memory.
struct HostWeights {
  static constexpr Op op{"DecoderLayer"};
  static constexpr bool kExperts = true, kSinks = true, kLatents = true, kRecurrent = true;

  static int64_t size(const char* name, PyObject* object) { return array(op, name, object).size; }
  static int64_t rows(const char* name, PyObject* object) { return rows_of(op, name, object); }
  static const float* vector(const char* name, PyObject* object, int64_t n) {
    return float_vector(op, name, object, n);
  }
  static cpu::Matrix matrix(const char* name, PyObject* object, int64_t n, int64_t k) {
    return stored_matrix(op, name, object, n, k);
  }
};

using DecoderLayer = LayerWeights<HostWeights>;
using Layers = std::vector<const cpu::DecoderLayer*>;

// The items of a list or a tuple. They live as long as this tuple, even if the list changes.
inline py::tuple items_of(const Op& op, const char* name, PyObject* sequence) {
  if (!PyTuple_Check(sequence) && !PyList_Check(sequence))
    wrong_kind(op, name, sequence, "a list or a tuple");
  return steal(PySequence_Tuple(sequence));
}

// The layers in a tuple of DecoderLayers, which keeps them alive.
inline Layers layers_of(const py::tuple& items) {
  Layers layers;
  for (const py::handle item : items) layers.push_back(&py::cast<const DecoderLayer&>(item).get());
  return layers;
}

// The arguments of a call, converted for the kernels.
class DecoderArguments {
 public:
  // `layers` must outlive these; the call has `rows` rows of `width` values. `inputs` may be null.
  DecoderArguments(const Op& op, const Layers& layers, int64_t rows, int64_t width, PyObject* rotations,
                   PyObject* sequences, PyObject* inputs)
      : op_(op),
        layers_(layers),
        rows_(rows),
        width_(width),
        kept_{items_of(op, "rotations", rotations), items_of(op, "rows", sequences)} {
    for (const py::handle item : kept_[0]) rotations_.push_back(rotation(item.ptr()));
    for (const cpu::DecoderLayer* layer : layers) check(*layer);
    read_inputs(inputs);
    for (const py::handle item : kept_[1]) sequences_.push_back(sequence(item.ptr()));
    const int64_t stop = sequences_.empty() ? 0 : sequences_.back().stop;
    if (stop != rows)
      op.wrong_value("rows", "has " + std::to_string(stop) + " rows",
                     "as many as come, " + std::to_string(rows));
  }

  // The call without its input and output.
  cpu::DecoderCall call() const {
    cpu::DecoderCall call{};
    call.layers = layers_.data();
    call.count = static_cast<int64_t>(layers_.size());
    call.rows = rows_;
    call.width = width_;
    call.inputs = inputs_;
    call.rotations = rotations_.data();
    call.sequences = sequences_.data();
    call.sequence_count = static_cast<int64_t>(sequences_.size());
    return call;
  }

 private:
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
    if (a.ndim != 3 || a.shape[0] != rows_ || a.shape[1] != 1)
      op_.wrong_shape(name, a, "(rows, 1, pairs) with rows=" + std::to_string(rows_));
    return a;
  }

  void check(const cpu::DecoderLayer& found) const {
    if (found.rotation < 0 || found.recurrent.taps) return;
    if (found.rotation >= static_cast<int64_t>(rotations_.size()))
      op_.wrong_value("rotations", "has " + std::to_string(rotations_.size()) + " tables",
                      std::to_string(found.rotation + 1) + " or more, as a layer needs");
    const int64_t rotated = 2 * rotations_[found.rotation].pairs;
    if (found.latent.kv_rank && rotated != found.latent.rotated)
      op_.wrong_value("rotations", "has " + std::to_string(rotated / 2) + " pairs",
                      std::to_string(found.latent.rotated / 2) + ", as the weights have");
    if (rotated > found.head_dim)
      op_.wrong_value("rotations", "has " + std::to_string(rotations_[found.rotation].pairs) + " pairs",
                      "at most half of head_dim=" + std::to_string(found.head_dim));
  }

  // The layers' own inputs (layers, rows, values), if they have them.
  void read_inputs(PyObject* object) {
    int64_t values = 0;
    for (const cpu::DecoderLayer* layer : layers_) values = std::max(values, layer->input_gate.n);
    if (!present(object)) {
      if (values) op_.wrong_value("inputs", "is None", "an array, as the layers have inputs");
      return;
    }
    const Array a = array(op_, "inputs", object);
    if (a.dtype != cpu::kFloat32)
      op_.wrong_type("inputs", std::string("has dtype ") + dtype_name(a.dtype), "float32");
    const py::ssize_t expected[] = {static_cast<py::ssize_t>(layers_.size()), rows_, values};
    if (!same_shape(a, 3, expected)) op_.wrong_shape("inputs", a, shape_text(3, expected));
    for (const cpu::DecoderLayer* layer : layers_)
      if (layer->input_gate.n != values)
        op_.wrong_value("inputs", "has layers of different sizes", "the same for all layers");
    inputs_ = reinterpret_cast<const float*>(a.data);
  }

  cpu::Sequence sequence(PyObject* object) const {
    const bool with_states = PyTuple_Check(object) && PyTuple_GET_SIZE(object) == 5;
    has_items("rows", object, with_states ? 5 : 4, "tuples of start, stop, keys and values, length");
    cpu::Sequence found{whole(object, 0), whole(object, 1), whole(object, 3), cpu::kF32, {}};
    add_parts(found, PyTuple_GET_ITEM(object, 2));
    add_states(found, with_states ? PyTuple_GET_ITEM(object, 4) : nullptr);
    const int64_t before = sequences_.empty() ? 0 : sequences_.back().stop;
    if (found.start != before || found.stop <= found.start || found.stop > rows_)
      op_.wrong_value("rows", "has rows " + std::to_string(found.start) + " to " + std::to_string(found.stop),
                      "those from " + std::to_string(before) + " to " + std::to_string(rows_));
    for (const cpu::CachePart& part : found.parts) check_length(found, part);
    for (const cpu::Sequence& other : sequences_)
      if (other.parts[0].data == found.parts[0].data)
        op_.wrong_value("rows", "has a cache twice", "one of its own for each sequence");
    return found;
  }
  static int64_t whole(PyObject* tuple, Py_ssize_t item) {
    const int64_t value = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, item));
    if (value == -1 && PyErr_Occurred()) throw py::error_already_set();
    return value;
  }

  // The parts of a cache: an array, or a tuple with an array and how many tokens it lacks for each part.
  void add_parts(cpu::Sequence& found, PyObject* data) const {
    const bool several = PyTuple_Check(data);
    const Py_ssize_t count = several ? PyTuple_GET_SIZE(data) : 1;
    if (!count) op_.wrong_value("keys and values", "are an empty tuple", "one part or more");
    std::vector<Stored> arrays;
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* const part = several ? PyTuple_GET_ITEM(data, i) : data;
      if (several) has_items("keys and values", part, 2, "tuples of an array and a number");
      const Stored& array = arrays.emplace_back(keys_and_values(several ? PyTuple_GET_ITEM(part, 0) : part));
      if (i && array.format != found.format)
        op_.wrong_value("keys and values", "have two dtypes", "the same for all parts");
      found.format = array.format;
      found.parts.push_back({array.array.data, array.shape[3], several ? whole(part, 1) : 0});
    }
    for (const cpu::DecoderLayer* layer : layers_) {
      if (layer->recurrent.taps) continue;
      if (layer->part >= count)
        op_.wrong_value("keys and values", "have " + std::to_string(count) + " parts",
                        std::to_string(layer->part + 1) + " or more, as a layer needs");
      has_layer(arrays[size_t(layer->part)], *layer);
      check_dropped(found, *layer);
    }
  }

  // The recurrent states of all layers: copies of them (copies, floats), and which of these is before the
  // rows and after them.
  void add_states(cpu::Sequence& found, PyObject* states) const {
    int64_t floats = 0;
    for (const cpu::DecoderLayer* layer : layers_)
      if (layer->recurrent.taps)
        floats = std::max(floats, layer->recurrent.state_at + layer->recurrent.state());
    if (!states) {
      if (floats) op_.wrong_value("rows", "have no states", "those of recurrent layers");
      return;
    }
    has_items("states", states, 3, "tuples of an array and two numbers");
    PyObject* const object = PyTuple_GET_ITEM(states, 0);
    const Array a = array(op_, "states", object);
    const int64_t now = whole(states, 1), next = whole(states, 2);
    if (a.dtype != cpu::kFloat32 || a.ndim != 2 || a.axis(1) < floats || std::min(now, next) < 0 ||
        std::max(now, next) >= a.axis(2))
      op_.wrong_shape("states", a, "(copies, " + std::to_string(floats) + ") in float32, with more copies");
    if (!has_flags(object, py::detail::npy_api::NPY_ARRAY_WRITEABLE_))
      op_.wrong_value("states", "is read-only", "a writeable array");
    float* const first = reinterpret_cast<float*>(a.data);
    found.state = first + now * a.axis(1);
    found.next_state = first + next * a.axis(1);
  }

  void check_dropped(const cpu::Sequence& found, const cpu::DecoderLayer& layer) const {
    const int64_t dropped = found.parts[size_t(layer.part)].dropped, step = cpu::kFewRowsPiece;
    const int64_t most = layer.window ? std::max<int64_t>(0, found.length + 1 - layer.window) : 0;
    if (dropped >= 0 && dropped % step == 0 && dropped <= most) return;
    op_.wrong_value("keys and values", "lack the first " + std::to_string(dropped) + " tokens",
                    "a multiple of " + std::to_string(step) + ", and at most those that no query sees, " +
                        std::to_string(most));
  }

  void check_length(const cpu::Sequence& found, const cpu::CachePart& part) const {
    if (found.length < part.dropped || found.length - part.dropped > part.room - found.tokens())
      op_.wrong_value("rows",
                      "has a length of " + std::to_string(found.length) + " and " +
                          std::to_string(found.tokens()) + " rows",
                      "at most the cache's " + std::to_string(part.dropped + part.room));
  }

  Stored keys_and_values(PyObject* object) const {
    const Stored a = read_cache(op_, "keys and values", object);
    if (a.format == cpu::kBF16)
      op_.wrong_type("keys and values", "has dtype bfloat16", "float32, float16 or blocks of q8_0 in uint8");
    if (!has_flags(object, py::detail::npy_api::NPY_ARRAY_WRITEABLE_))
      op_.wrong_value("keys and values", "is read-only", "a writeable array");
    if (a.ndim != 5)
      op_.wrong_value("keys and values", "has shape " + a.shape_text(),
                      "(layers, 2, kv_heads, capacity, head_dim)");
    return a;
  }
  void has_layer(const Stored& a, const cpu::DecoderLayer& layer) const {
    const int64_t runs = layer.latent.kv_rank ? 1 : 2;
    if (a.shape[0] <= layer.place || a.shape[1] != runs || a.shape[2] != layer.kv_heads ||
        a.shape[4] != layer.head_dim)
      op_.wrong_value("keys and values", "has shape " + a.shape_text(),
                      "(layers, " + std::to_string(runs) + ", " + std::to_string(layer.kv_heads) +
                          ", capacity, " + std::to_string(layer.head_dim) + ") with layers more than " +
                          std::to_string(layer.place));
  }

  const Op& op_;
  const Layers& layers_;
  const int64_t rows_, width_;
  const std::array<py::tuple, 2> kept_;  // the owners of what the pointers below refer to
  const float* inputs_ = nullptr;
  std::vector<cpu::Rotation> rotations_;
  std::vector<cpu::Sequence> sequences_;
};

// A call in progress: its memory and its threads.
class DecoderRun {
 public:
  DecoderRun(const cpu::Kernels& kernels, const cpu::DecoderCall& call, const cpu::DecoderSizes& sizes)
      : kernels_(kernels),
        call_(call),
        sizes_(sizes),
        team_(cpu::parts(sizes.weights / 4, call.rows, 1)),
        at_(sizes, call, team_),
        memory_(at_.bytes(team_)) {
    std::memset(memory_.data() + at_.done, 0, at_.begun - at_.done);
    cpu::Balance::all().shares(reinterpret_cast<float*>(memory_.data() + at_.begins), team_);
    calls.fetch_add(1, std::memory_order_relaxed);
  }

  // Runs steps [first, last) on all threads.
  void go(uint32_t first, uint32_t last) {
    auto* const begun = reinterpret_cast<cpu::Lockstep::Begun*>(memory_.data() + at_.begun);
    std::memset(static_cast<void*>(begun), 0, cpu::Lockstep::bytes(team_));
    cpu::Lockstep steps(team_);
    const bool complete = last == cpu::DecoderThread::steps(call_, sizes_);
    const Unlocked unlocked;
    cpu::on_team(team_, [&](int me, int all) {
      cpu::DecoderThread thread(kernels_, call_, sizes_, at_, memory_.data(), me, all);
      steps.run(last - first, me, all, begun,
                [&](uint32_t step, uint32_t share) { thread.run(first + step, share); });
      if (complete && !call_.ends && me == 0) thread.finish();
    });
    const auto* const took = reinterpret_cast<const cpu::ShareTicks*>(memory_.data() + at_.took);
    if (complete) cpu::Balance::all().learn(took, team_, call_.count);
  }

 private:
  const cpu::Kernels& kernels_;
  const cpu::DecoderCall& call_;
  const cpu::DecoderSizes& sizes_;
  const int team_;
  const cpu::DecoderMemory at_;
  const cpu::Workspace memory_;
};

inline Array rows_to_change(const Op& op, PyObject* object) {
  const Array x = array(op, "x", object);
  if (x.dtype != cpu::kFloat32)
    op.wrong_type("x", std::string("has dtype ") + dtype_name(x.dtype), "float32");
  if (x.ndim != 2 || x.shape[0] > cpu::kDecodeRows)
    op.wrong_shape("x", x, "(rows, width) with at most " + std::to_string(cpu::kDecodeRows) + " rows");
  if (!has_flags(object, py::detail::npy_api::NPY_ARRAY_WRITEABLE_))
    op.wrong_value("x", "is read-only", "a writeable array");
  return x;
}

inline PyObject* decoder_layers(const Op& op, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  static const char* const names[] = {"layers", "x", "rotations", "rows", "inputs"};
  PyObject* values[5];
  place(op, values, names, 5, 4, args, nargs, keywords);
  const Array x = rows_to_change(op, values[1]);
  const py::tuple kept = items_of(op, "layers", values[0]);
  const Layers layers = layers_of(kept);
  for (const cpu::DecoderLayer* layer : layers)
    if (layer->width != x.shape[1]) op.wrong_shape("x", x, "(rows, " + std::to_string(layer->width) + ")");
  const DecoderArguments read(op, layers, x.shape[0], x.shape[1], values[2], values[3], values[4]);
  cpu::DecoderCall call = read.call();
  if (!call.count || !call.rows) Py_RETURN_NONE;
  call.x = reinterpret_cast<float*>(x.data);
  const cpu::Kernels& kernels = *active.load();
  const cpu::DecoderSizes sizes(kernels, call.layers, call.count, nullptr);
  DecoderRun(kernels, call, sizes).go(0, cpu::DecoderThread::steps(call, sizes));
  Py_RETURN_NONE;
}

}  // namespace ops
