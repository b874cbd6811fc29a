// The C++ registry as a program uses it. Exits 1 with a line for each check that fails; prints the results of
// every op, which tests/backends/test_cpp_registry.py compares with the definitions. Arguments are names of
// backends: it prints which one each of them is.
#include <airllm/backend/backends.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <thread>

using namespace airllm::backend;
using Floats = std::vector<float>;

namespace cpu {  // a program may have this name itself
int threads() { return 7; }
}  // namespace cpu

namespace {

// Before main(), and before anything of the registry's own need be initialized.
const size_t available_early = BackendRegistry::get_instance().get_available_backends().size();

int failures = 0;

void check(bool holds, const std::string& what) {
  if (holds) return;
  ++failures;
  std::printf("WRONG: %s\n", what.c_str());
}

template <class Error>
void check_throws(const std::string& message, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return check(error.what() == message, "says '" + std::string(error.what()) + "', not '" + message + "'");
  } catch (const std::exception& error) {
    return check(false, "another kind of error: " + std::string(error.what()));
  }
  check(false, "no error: " + message);
}

Floats numbers(int64_t n, int first) {
  Floats made(n);
  for (int64_t i = 0; i < n; ++i) made[i] = static_cast<float>((i * 37 + first * 11) % 101) / 25.f - 2.f;
  return made;
}

std::vector<uint16_t> bfloat16(const Floats& floats) {
  std::vector<uint16_t> bits(floats.size());
  for (size_t i = 0; i < bits.size(); ++i)
    std::memcpy(&bits[i], reinterpret_cast<const char*>(&floats[i]) + 2, 2);
  return bits;
}

// A program's own backend, which has one op.
class Doubling : public Backend {
 public:
  explicit Doubling(std::string name, std::string why_not = "") : name_(name), why_not_(why_not) {}
  std::string get_name() const override { return name_; }
  std::string why_not() const override { return why_not_; }
  void silu(Output out, Input x, int64_t n) const override {
    for (int64_t i = 0; i < n; ++i)
      static_cast<float*>(out.data)[i] = 2 * static_cast<const float*>(x.data)[i];
  }

 private:
  std::string name_, why_not_;
};

// Values that programs may have written down: they stay.
static_assert(int(BackendType::CUDA) == 0 && int(BackendType::OPENCL) == 1 && int(BackendType::CPU) == 2);
static_assert(int(BackendType::MLX) == 3 && int(BackendType::WEBGPU) == 4 && int(BackendType::PYTHON) == 5);

void check_registry(BackendRegistry& registry) {
  check(available_early == 1, "the CPU before main()");
  check(&registry == &BackendRegistry::get_instance(), "one registry");
  check(registry.get_available_backends() == std::vector<BackendType>{BackendType::CPU},
        "available backends");
  check(registry.get_backend("cpu") == registry.get_backend(BackendType::CPU), "by name and by type");
  check(!registry.get_backend("tpu") && !registry.get_backend("") && !registry.get_backend("cp") &&
            !registry.get_backend(BackendType(99)) && !registry.get_backend(BackendType(-1)),
        "null for what is not known");
  for (const char* name : {"cuda", "opencl", "mlx", "webgpu", "python"})
    check(registry.get_backend(name) && !registry.get_backend(name)->is_available(), "there, with a reason");
  const std::string reason = registry.get_backend("cuda")->why_not();
  check_throws<std::runtime_error>("backend 'cuda' cannot run here: " + reason,
                                   [&] { registry.get_backend("cuda")->silu(nullptr, nullptr, 0); });
  check_throws<std::runtime_error>("backend 'cuda' cannot run here: " + reason,
                                   [&] { registry.set_default_backend("cuda"); });
  check_throws<std::invalid_argument>(
      "set_default_backend: name has value 'tpu', expected one of cuda, opencl, cpu, mlx, webgpu, python, "
      "rocm",
      [&] { registry.set_default_backend("tpu"); });
}

void print_names(const BackendRegistry& registry, int count, char** names) {
  for (int i = 0; i < count; ++i) {
    const Backend* backend = registry.get_backend(names[i]);
    std::printf("name %s: %s\n", names[i], backend ? backend->get_name().c_str() : "none");
  }
}

void check_added(BackendRegistry& registry) {
  Backend* const absent = registry.get_backend("cuda");
  check(registry.add(std::make_unique<Doubling>("cuda", "no driver")) == BackendType::CUDA,
        "an absent one's type");
  check(!absent->is_available() && registry.get_backend("cuda") != absent, "the absent one lives on");
  check(get_default_backend()->get_name() == "cpu", "not by default: it cannot run");
  const BackendType type = registry.add(std::make_unique<Doubling>("doubling"));
  check(type == BackendType::ADDED && registry.get_backend(type)->get_name() == "doubling",
        "a type of its own");
  check(registry.get_available_backends() == std::vector<BackendType>{BackendType::CPU, type},
        "available, last");
  check_throws<std::invalid_argument>(
      "add: name has value 'doubling', expected one that no available backend has",
      [&] { registry.add(std::make_unique<Doubling>("doubling")); });
  check_throws<std::invalid_argument>(
      "add: name has value 'OpenMP', expected one that no available backend has",
      [&] { registry.add(std::make_unique<Doubling>("OpenMP")); });
  Backend* const absent_mlx = registry.get_backend("mlx");
  check(registry.add(std::make_unique<Doubling>("metal", "no Mac")) > BackendType::ADDED &&
            registry.get_backend("Metal")->why_not() == "no Mac" && registry.get_backend("mps") == absent_mlx,
        "a name of its own goes before another name of one that cannot run");
  check_throws<std::invalid_argument>("add: backend has a null pointer, expected a Backend",
                                      [&] { registry.add(nullptr); });
  registry.set_default_backend("doubling");
  float x = 3;
  get_default_backend()->silu(&x, &x, 1);
  check(x == 6, "the program's own silu");
  check_throws<std::runtime_error>("backend 'doubling' has no gelu",
                                   [&] { get_default_backend()->gelu(&x, &x, 1); });
  registry.set_default_backend("cpu");
}

void check_arguments(Backend& cpu) {
  float a[64] = {}, b[64] = {};
  const auto wrong = [](const char* message, const std::function<void()>& call) {
    check_throws<std::invalid_argument>(message, call);
  };
  wrong("silu: n has value -1, expected 0 or more", [&] { cpu.silu(a, b, -1); });
  wrong("silu: x has a null pointer, expected 3 elements of float32", [&] { cpu.silu(a, nullptr, 3); });
  wrong("silu: out has dtype float16, expected float32", [&] { cpu.silu({a, DType::FLOAT16}, b, 3); });
  wrong("silu: x has dtype bool, expected float32 or float16 or bfloat16",
        [&] { cpu.silu(a, {b, DType::BOOL}, 3); });
  wrong("silu: out overlaps x, expected memory of its own or exactly x", [&] { cpu.silu(a + 1, a, 3); });
  wrong("silu: x has an address that is not aligned, expected a multiple of 4 bytes",
        [&] { cpu.silu(a, {reinterpret_cast<char*>(b) + 1, DType::FLOAT32}, 3); });
  wrong("swiglu: up has dtype float16, expected float32", [&] { cpu.swiglu(a, b, {b, DType::FLOAT16}, 3); });
  wrong("rms_norm: dim has value 4611686018427387904, expected an array that fits memory",
        [&] { cpu.rms_norm(a, b, b, 4, int64_t{1} << 62); });
  wrong("rms_norm: weight has a null pointer, expected 4 elements of float32",
        [&] { cpu.rms_norm(a, b, nullptr, 2, 4); });
  wrong("add_rms_norm: normed overlaps sum, expected memory of its own",
        [&] { cpu.add_rms_norm(a, a, b, b, b, 2, 4); });
  wrong("softmax: mask_rows has value 3, expected a divisor of rows=4",
        [&] { cpu.softmax(a, b, 4, 4, 1.f, b, 3); });
  wrong("apply_rope: pairs has value 3, expected at most half of dim=4",
        [&] { cpu.apply_rope(a, b, b, b, 1, 1, 4, 3); });
  wrong("matmul: out overlaps a, expected memory of its own", [&] { cpu.matmul(a, a, b, 2, 2, 2); });
  wrong("linear: k has value 33, expected a multiple of 32, the block of q8_0",
        [&] { cpu.linear(a, b, {b, "q8_0"}, nullptr, 1, 1, 33); });
  wrong(
      "quantize: format has value 'q9', expected one of q8_0, q4_0, q4_1, q5_0, q5_1, q2_k, q3_k, q4_k, "
      "q5_k, "
      "q6_k, iq4_nl, iq4_xs, mxfp4",
      [&] { cpu.quantize(a, "q9", b, 1, 32); });
  wrong("attention: heads has value 3, expected a multiple of kv_heads=2",
        [&] { cpu.attention(a, b, b, b, {1, 3, 2, 1, 1, 4, 4}); });
  wrong("attention: capacity has value 1, expected 0, or keys=2 or more",
        [&] { cpu.attention(a, b, b, b, {1, 2, 2, 1, 2, 4, 4, 1}); });
  wrong("set_num_threads: n has value 0, expected a whole number from 1 to 4096",
        [&] { cpu.set_num_threads(0); });
  cpu.silu(nullptr, nullptr, 0);
  cpu.rms_norm(nullptr, nullptr, b, 0, 4);
  check(row_bytes("q4_k", 512) == 288, "bytes of a row");
}

void print(const char* op, const Floats& values) {
  std::printf("%s:", op);
  for (float value : values) std::printf(" %.9g", value);
  std::printf("\n");
}

void print_elements(const Backend& cpu) {
  const Floats x = numbers(50, 1), y = numbers(50, 2);
  Floats out(50);
  cpu.silu(out.data(), x.data(), 50);
  print("silu", out);
  cpu.gelu(out.data(), x.data(), 50);
  print("gelu", out);
  cpu.gelu(out.data(), x.data(), 50, Gelu::NONE);
  print("gelu none", out);
  cpu.geglu(out.data(), x.data(), y.data(), 50);
  print("geglu", out);
}

void print_rows(const Backend& cpu) {
  const Floats x = numbers(6 * 10, 1), y = numbers(6 * 10, 2), weight = numbers(10, 3), bias = numbers(10, 4);
  Floats out(60), sum(60);
  cpu.add_rms_norm(sum.data(), out.data(), x.data(), y.data(), weight.data(), 6, 10, 1e-2f);
  print("sum", sum);
  print("normed", out);
  cpu.layer_norm(out.data(), x.data(), weight.data(), bias.data(), 6, 10);
  print("layer_norm", out);
  cpu.softmax(out.data(), x.data(), 6, 10, 0.5f);
  print("softmax", out);
  cpu.softmax(out.data(), x.data(), 6, 10, 1.f, y.data(), 3);
  print("softmax masked", out);
  cpu.apply_rope(out.data(), x.data(), y.data(), weight.data(), 3, 2, 10, 4, true);
  print("apply_rope", out);
  const std::vector<uint16_t> narrow = bfloat16(x);
  std::vector<uint16_t> narrow_out(60);
  cpu.rms_norm({narrow_out.data(), DType::BFLOAT16}, {narrow.data(), DType::BFLOAT16}, weight.data(), 6, 10);
  for (int i = 0; i < 60; ++i) {
    const uint32_t bits = uint32_t{narrow_out[i]} << 16;
    std::memcpy(&out[i], &bits, 4);
  }
  print("rms_norm bfloat16", out);
}

Floats product(const Backend& cpu, int64_t m) {
  Floats out(m * 20);
  cpu.matmul(out.data(), numbers(m * 64, 1).data(), numbers(64 * 20, 2).data(), m, 20, 64);
  return out;
}

Floats linear(const Backend& cpu, int64_t m, const char* format) {
  std::vector<char> weight(20 * row_bytes(format, 64));
  cpu.quantize(weight.data(), format, numbers(20 * 64, 2).data(), 20, 64);
  Floats out(m * 20);
  cpu.linear(out.data(), numbers(m * 64, 1).data(), {weight.data(), format}, nullptr, m, 20, 64);
  return out;
}

void print_products(const Backend& cpu) {
  print("matmul", product(cpu, 3));
  print("matmul 33", product(cpu, 33));
  print("linear q4_0", linear(cpu, 3, "Q4_0"));
  print("linear q4_0 33", linear(cpu, 33, "q4_0"));
  Floats out(33 * 20);
  cpu.linear(out.data(), numbers(33 * 64, 1).data(), numbers(20 * 64, 2).data(), numbers(20, 3).data(), 33,
             20, 64);
  print("linear f32 33", out);
  std::vector<char> blocks(20 * row_bytes("q5_1", 64));
  cpu.quantize(blocks.data(), "q5_1", numbers(20 * 64, 1).data(), 20, 64);
  Floats values(20 * 64);
  cpu.dequantize(values.data(), {blocks.data(), "q5_1"}, 20, 64);
  print("dequantize", values);
}

// Keys of 7 rows lie in room for 9; two sequences.
Floats attention(const Backend& cpu) {
  const AttentionShape shape{2, 4, 2, 3, 7, 16, 12, 9};
  bool mask[3 * 7];
  for (int i = 0; i < 21; ++i) mask[i] = i % 3 != 1;
  AttentionOptions options;
  options.causal = true;
  options.scale = 0.5f;
  options.softcap = 20.f;
  options.window = 5;
  options.mask = mask;
  const Floats sinks = {-1, 0, 0.5f, 3};
  options.sinks = sinks.data();
  Floats out(2 * 4 * 3 * 12);
  cpu.attention(out.data(), numbers(2 * 4 * 3 * 16, 1).data(), numbers(2 * 2 * 9 * 16, 2).data(),
                numbers(2 * 2 * 9 * 12, 3).data(), shape, options);
  return out;
}

// Ops, searches and additions from several threads at once.
void check_threads(BackendRegistry& registry) {
  const Backend& cpu = *registry.get_backend("cpu");
  const Floats many = product(cpu, 33), few = linear(cpu, 3, "q4_0"), seen = attention(cpu);
  std::atomic<int> same{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      const std::string name = "added " + std::to_string(t);
      const BackendType type = registry.add(std::make_unique<Doubling>(name));
      const Backend& mine = *get_default_backend();
      for (int i = 0; i < 5; ++i)
        same += product(mine, 33) == many && linear(mine, 3, "q4_0") == few && attention(mine) == seen;
      same += registry.get_backend(name) == registry.get_backend(type);
      registry.get_available_backends();
      registry.set_default_backend("cpu");
    });
  for (std::thread& thread : threads) thread.join();
  check(same == 8 * 6, "the same from several threads: " + std::to_string(same));
  check(registry.get_available_backends().size() == 2 + 8, "every backend that was added");
}

}  // namespace

int main(int count, char** arguments) {
  BackendRegistry& registry = BackendRegistry::get_instance();
  check_registry(registry);
  print_names(registry, count - 1, arguments + 1);
  check_added(registry);
  Backend& cpu = *registry.get_backend("cpu");
  check_arguments(cpu);
  check_threads(registry);
  print_elements(cpu);
  print_rows(cpu);
  print_products(cpu);
  print("attention", attention(cpu));
  return failures || ::cpu::threads() != 7;
}
