// A device's memory, transfers and kernels in one in-order stream, for airllm/backends/gpu/place.py.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstring>
#include <list>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "../../bindings/arguments.h"
#include "../arrays/device_array.h"
#include "../runtime/compiler.h"
#include "../runtime/graph.h"
#include "../runtime/kernel_chain.h"
#include "../runtime/program.h"
#include "folders.h"

namespace airllm::cuda {

// The compiler of this process. The caller holds the GIL.
inline const Compiler& compiler() {
  static const auto* loaded = new Compiler(library_folders("cuda_nvrtc"));
  return *loaded;
}

inline py::bytes compile_text(const std::string& text, const std::string& arch) {
  const Compiler& by = compiler();
  std::string code;
  {
    const arguments::Unlocked released;
    code = by.compile(text, arch);
  }
  return py::bytes(code);
}

// A place in a stream: what was put there before has happened when the event has.
struct Mark {
  explicit Mark(cudaStream_t stream) { event.record(stream); }
  Event event;
};

// Memory of a queue. It is freed behind the launches that use it, on their stream, which it keeps.
class Buffer {
 public:
  Buffer(size_t bytes, int device, std::shared_ptr<Stream> home)
      : stream_(std::move(home)), memory_(bytes, device, *stream_), device_(device) {}
  ~Buffer() {
    if (written_ && !lost_in_fork) hold_back();
  }

  char* at(size_t offset) const { return static_cast<char*>(memory_.data()) + offset; }

  // An upload on another stream ends there: the memory is not freed before.
  void written_until(std::shared_ptr<Mark> ended) { written_ = std::move(ended); }

 private:
  void hold_back() noexcept {
    try {
      DeviceGuard guard(device_);
      written_->event.hold_back(*stream_);
    } catch (const std::exception&) {
    }
  }

  const std::shared_ptr<Stream> stream_;
  const Memory memory_;
  const int device_;
  std::shared_ptr<Mark> written_;
};

// A kernel with its grid and its arguments: bytes of a value, or None for no array, or the name of one.
class KernelLaunch {
 public:
  KernelLaunch(std::shared_ptr<Program> program, const std::string& kernel, int64_t groups, int64_t group,
               const py::sequence& arguments)
      : program_(std::move(program)), groups_(unsigned(groups)), group_(unsigned(group)) {
    for (const py::handle argument : arguments) {
      auto& value = values_.emplace_back();
      value.fill(0);
      if (py::isinstance<py::bytes>(argument)) {
        const auto text = argument.cast<std::string>();
        if (text.size() > value.size()) throw std::invalid_argument("an argument has more than 8 bytes");
        std::copy(text.begin(), text.end(), value.begin());
      } else if (!argument.is_none()) {
        arrays_.emplace_back(values_.size() - 1, py::reinterpret_borrow<py::object>(argument));
      }
    }
    DeviceGuard guard(program_->device());
    kernel_ = program_->kernel(kernel);
  }

  // The launch with the arrays that `memory` has: for each name a buffer, an offset in it, and how many bytes
  // there are from there.
  BoundLaunch bind(const py::dict& memory) const {
    BoundLaunch bound{kernel_, groups_, group_, values_};
    for (const auto& [index, name] : arrays_) {
      const py::tuple part = memory[name];
      const void* const at = part[0].cast<const Buffer&>().at(part[1].cast<size_t>());
      std::memcpy(bound.values[index].data(), &at, sizeof at);
    }
    return bound;
  }

 private:
  const std::shared_ptr<Program> program_;
  const unsigned groups_, group_;
  Driver::Function kernel_ = nullptr;
  std::vector<Value> values_;
  std::vector<std::pair<size_t, py::object>> arrays_;
};

// A number among the arguments of recorded launches, and by how much it grows for each token.
struct Growing {
  size_t launch, argument;
  uint64_t first;
  int64_t step;
};

// Launches that are started together, again and again. Whoever runs them keeps their memory.
class Recording {
 public:
  Recording(std::vector<BoundLaunch> launches, std::vector<Growing> growing, int device,
            std::shared_ptr<Stream> stream)
      : device_(device),
        stream_(std::move(stream)),
        chain_(std::move(launches)),
        growing_(std::move(growing)) {}

  // With the numbers of so many tokens later.
  void run(int64_t tokens) {
    if (lost_in_fork) require_devices();  // throws
    DeviceGuard guard(device_);
    check(cudaSetDevice(device_), "cudaSetDevice");  // a thread's first call of the driver needs it
    const arguments::Unlocked released;
    for (const Growing& each : growing_) {
      const uint64_t number = each.first + uint64_t(tokens * each.step);
      Value value;
      std::memcpy(value.data(), &number, sizeof number);
      chain_.set(each.launch, each.argument, value);
    }
    chain_.launch(*stream_);
  }

 private:
  const int device_;
  const std::shared_ptr<Stream> stream_;
  KernelChain chain_;
  const std::vector<Growing> growing_;
};

// Host memory that a device may still read, and when it no longer does.
struct Upload {
  std::shared_ptr<Mark> ended;
  std::vector<py::array> pieces;
  bool awaited = false;  // the launches' stream waits for it
};

class Queue {
 public:
  // The device that computes on NumPy arrays.
  static std::shared_ptr<Queue> open() {
    const int device = default_device();
    DeviceGuard guard(device);
    return std::make_shared<Queue>(device);
  }
  explicit Queue(int device)
      : device_(device),
        facts_(device_facts(device)),
        stream_(std::make_shared<Stream>()),
        transfers_(std::make_shared<Stream>()) {}
  ~Queue() { wait_quietly(); }

  std::shared_ptr<Buffer> allocate(size_t bytes) const {
    DeviceGuard guard(device_);
    return std::make_shared<Buffer>(bytes, device_, stream_);
  }

  void upload(const Buffer& buffer, const py::array& array) {
    require_device();
    DeviceGuard guard(device_);
    copy(buffer.at(0), array.data(), size_t(array.nbytes()), cudaMemcpyHostToDevice, *stream_);
    kept_.push_back(std::make_shared<Upload>(Upload{nullptr, {array}, true}));
  }

  // Waits for all that was put on the queue.
  void download(const Buffer& buffer, size_t offset, py::array& out) {
    require_device();
    DeviceGuard guard(device_);
    void* const to = out.mutable_data();
    const auto bytes = size_t(out.nbytes());
    {
      const arguments::Unlocked released;
      copy(to, buffer.at(offset), bytes, cudaMemcpyDeviceToHost, *stream_);
      check(cudaStreamSynchronize(*stream_), "cudaStreamSynchronize");
    }
    kept_.remove_if([](const auto& upload) { return upload->awaited; });
  }

  std::shared_ptr<Program> load(const std::string& code) const {
    DeviceGuard guard(device_);
    return std::make_shared<Program>(code, device_);
  }

  void run(const py::iterable& launches, const py::dict& memory) const {
    require_device();
    DeviceGuard guard(device_);
    check(cudaSetDevice(device_), "cudaSetDevice");  // a thread's first call of the driver needs it
    std::vector<BoundLaunch> bound;
    for (const py::handle launch : launches) bound.push_back(launch.cast<const KernelLaunch&>().bind(memory));
    const arguments::Unlocked released;  // a launch waits where the driver's queue is full
    for (BoundLaunch& launch : bound) launch.start(*stream_);
  }

  // Launches, each with its memory as `run` takes it, and the numbers that grow: (launch, argument, first,
  // step).
  std::unique_ptr<Recording> record(
      const py::sequence& launches,
      const std::vector<std::tuple<size_t, size_t, uint64_t, int64_t>>& numbers) const {
    require_device();
    DeviceGuard guard(device_);
    check(cudaSetDevice(device_), "cudaSetDevice");
    std::vector<BoundLaunch> bound;
    for (const py::handle each : launches) {
      const auto [launch, memory] = each.cast<std::pair<py::object, py::dict>>();
      bound.push_back(launch.cast<const KernelLaunch&>().bind(memory));
    }
    std::vector<Growing> growing;
    for (const auto& [launch, argument, first, step] : numbers) {
      if (launch >= bound.size() || argument >= bound[launch].values.size())
        throw std::out_of_range("a recorded launch has no argument " + std::to_string(argument));
      growing.push_back({launch, argument, first, step});
    }
    return std::make_unique<Recording>(std::move(bound), std::move(growing), device_, stream_);
  }

  // ---- uploads beside launches

  std::shared_ptr<Mark> mark() const {
    DeviceGuard guard(device_);
    return std::make_shared<Mark>(*stream_);
  }

  // Behind `after`, or without it behind all launches so far, of which one may be the last to use the memory.
  std::shared_ptr<Upload> begin_upload(Buffer& buffer, const std::vector<py::array>& pieces,
                                       const std::shared_ptr<Mark>& after) {
    require_device();
    DeviceGuard guard(device_);
    (after ? after : std::make_shared<Mark>(*stream_))->event.hold_back(*transfers_);
    size_t offset = 0;
    for (const py::array& piece : pieces) {
      copy(buffer.at(offset), piece.data(), size_t(piece.nbytes()), cudaMemcpyHostToDevice, *transfers_);
      offset += size_t(piece.nbytes());
    }
    auto made = std::make_shared<Upload>(Upload{std::make_shared<Mark>(*transfers_), pieces});
    buffer.written_until(made->ended);
    kept_.push_back(made);
    return made;
  }

  void finish_upload(Upload& upload) const {
    DeviceGuard guard(device_);
    upload.ended->event.hold_back(*stream_);
    upload.awaited = true;
  }

  void wait_upload(const Upload& upload) const {
    DeviceGuard guard(device_);
    const arguments::Unlocked released;
    upload.ended->event.wait();
  }

  py::array pinned(size_t bytes) const {
    DeviceGuard guard(device_);
    auto made = std::make_unique<Pinned<uint8_t>>(bytes);
    uint8_t* const data = made->data();
    const py::capsule owner(made.release(), [](void* held) { delete static_cast<Pinned<uint8_t>*>(held); });
    return py::array(py::dtype::of<uint8_t>(), {py::ssize_t(bytes)}, {py::ssize_t(1)}, data, owner);
  }

  size_t free_memory() const {
    DeviceGuard guard(device_);
    size_t free_bytes = 0, total = 0;
    check(cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo");
    return free_bytes;
  }

  int device() const { return device_; }
  int units() const { return facts_.multiprocessors; }
  const std::string& arch() const { return facts_.arch; }

 private:
  static void require_device() {
    if (lost_in_fork) require_devices();  // throws
  }

  // Host memory of uploads may go when this does.
  void wait_quietly() noexcept {
    if (lost_in_fork) return;
    try {
      DeviceGuard guard(device_);
      for (const auto& stream : {transfers_, stream_}) {
        if (cudaStreamSynchronize(*stream) != cudaSuccess) cudaGetLastError();
      }
    } catch (const std::exception&) {
    }
  }

  const int device_;
  const DeviceFacts facts_;
  const std::shared_ptr<Stream> stream_, transfers_;
  std::list<std::shared_ptr<Upload>> kept_;
};

// A module's attribute that airllm/backends/gpu/place.py makes: importing it starts Python code.
inline py::object attribute_of_place(const std::string& name) {
  if (name != "device_ops" && name != "counters")
    throw py::attribute_error(std::string("module '") + Vendor::kModule + "' has no attribute '" + name +
                              "'");
  const py::module_ place = py::module_::import("airllm.backends.gpu.place");
  return place.attr("attribute_of")(py::module_::import(Vendor::kModule), name);
}

inline void define_queue(py::module_& module) {
  py::class_<Buffer, std::shared_ptr<Buffer>>(module, "Buffer");
  py::class_<Mark, std::shared_ptr<Mark>>(module, "Mark");
  py::class_<Upload, std::shared_ptr<Upload>>(module, "Upload");
  py::class_<Program, std::shared_ptr<Program>>(module, "Program");
  py::class_<Recording>(module, "Recording", "Launches that are started again with other numbers.")
      .def("run", &Recording::run, py::arg("tokens"));
  py::class_<KernelLaunch>(module, "Launch",
                           "A kernel with its grid and arguments: bytes, None, or names of arrays.")
      .def(py::init<std::shared_ptr<Program>, const std::string&, int64_t, int64_t, const py::sequence&>(),
           py::arg("program"), py::arg("kernel"), py::arg("groups"), py::arg("group"), py::arg("arguments"));
  py::class_<Queue, std::shared_ptr<Queue>>(module, "Queue", "Memory and launches of the device in use.")
      .def(py::init(&Queue::open))
      .def("allocate", &Queue::allocate)
      .def("upload", &Queue::upload)
      .def("download", &Queue::download)
      .def("load", &Queue::load)
      .def("run", &Queue::run)
      .def("record", &Queue::record, py::arg("launches"), py::arg("numbers"))
      .def("mark", &Queue::mark)
      .def("begin_upload", &Queue::begin_upload)
      .def("finish_upload", &Queue::finish_upload)
      .def("wait_upload", &Queue::wait_upload)
      .def("pinned", &Queue::pinned)
      .def("free_memory", &Queue::free_memory)
      .def_property_readonly("device", &Queue::device)
      .def_property_readonly("units", &Queue::units)
      .def_property_readonly("arch", &Queue::arch);
  module.def("compile", &compile_text, py::arg("text"), py::arg("arch"),
             "The machine code of kernels for an architecture, such as \"sm_90\" or \"gfx90a\".");
  module.def("__getattr__", &attribute_of_place);
}

}  // namespace airllm::cuda
