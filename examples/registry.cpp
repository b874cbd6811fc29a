// The backends from C++, without Python. In this folder:
//   g++ registry.cpp $(python -m airllm cpp-flags) -o registry && ./registry
#include <airllm/backend/backends.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <thread>

using namespace airllm::backend;
using Floats = std::vector<float>;

// Reproducible values between -2 and 2.
Floats numbers(int64_t n, int first) {
  Floats made(n);
  for (int64_t i = 0; i < n; ++i) made[i] = static_cast<float>((i * 37 + first * 11) % 101) / 25.f - 2.f;
  return made;
}

void print(const char* op, const Floats& values) {
  std::printf("%s:", op);
  for (float value : values) std::printf(" %.9g", value);
  std::printf("\n");
}

void list_backends(const BackendRegistry& registry) {
  for (auto type : registry.get_backends()) {
    const Backend* backend = registry.get_backend(type);
    const std::string why_not = backend->why_not();
    std::printf("backend %s: %s\n", backend->get_name().c_str(),
                why_not.empty() ? backend->get_device().c_str() : why_not.c_str());
  }
}

Floats rms_norm(const Backend& backend) {
  const int64_t rows = 3, dim = 70;
  Floats out(rows * dim);
  backend.rms_norm(out.data(), numbers(rows * dim, 1).data(), numbers(dim, 2).data(), rows, dim);
  return out;
}

Floats swiglu(const Backend& backend) {
  const int64_t n = 70;
  Floats out = numbers(n, 1);
  backend.swiglu(out.data(), out.data(), numbers(n, 2).data(), n);  // in place
  return out;
}

// A weight in blocks of 32 values, as in a model file; it is multiplied without dequantizing it.
Floats linear(const Backend& backend) {
  const int64_t m = 2, n = 5, k = 64;
  std::vector<char> weight(n * row_bytes("q8_0", k));
  backend.quantize(weight.data(), "q8_0", numbers(n * k, 1).data(), n, k);
  Floats out(m * n);
  backend.linear(out.data(), numbers(m * k, 2).data(), {weight.data(), "q8_0"}, numbers(n, 3).data(), m, n,
                 k);
  return out;
}

// Two query tokens with rotary positions attend to six keys.
Floats attention(const Backend& backend) {
  const int64_t heads = 4, kv_heads = 2, queries = 2, keys = 6, dim = 16;
  Floats q = numbers(heads * queries * dim, 1);
  Floats cos(queries * dim / 2), sin(queries * dim / 2);
  for (int64_t i = 0; i < queries * dim / 2; ++i) {
    cos[i] = std::cos(0.1f * static_cast<float>(i));
    sin[i] = std::sin(0.1f * static_cast<float>(i));
  }
  backend.apply_rope(q.data(), q.data(), cos.data(), sin.data(), heads, queries, dim, dim / 2);
  AttentionOptions options;
  options.causal = true;
  Floats out(heads * queries * dim);
  backend.attention(out.data(), q.data(), numbers(kv_heads * keys * dim, 2).data(),
                    numbers(kv_heads * keys * dim, 3).data(), {1, heads, kv_heads, queries, keys, dim, dim},
                    options);
  return out;
}

// Several threads may call ops at once: each must compute the same result as a single thread.
bool same_from_threads(const Backend& backend, int count) {
  const Floats alone = attention(backend);
  std::vector<Floats> found(count);
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i)
    threads.emplace_back([&, i] { found[i] = attention(*get_default_backend()); });
  for (std::thread& thread : threads) thread.join();
  for (const Floats& each : found)
    if (each != alone) return false;
  return true;
}

int main() try {
  auto& registry = BackendRegistry::get_instance();
  list_backends(registry);
  const Backend* cuda = registry.get_backend("cuda");
  std::printf("CUDA is %savailable\n", cuda && cuda->is_available() ? "" : "not ");

  const Backend* backend = get_default_backend();
  std::printf("default: %s\n", backend->get_name().c_str());
  print("rms_norm", rms_norm(*backend));
  print("swiglu", swiglu(*backend));
  print("linear", linear(*backend));
  print("attention", attention(*backend));
  std::printf("threads agree: %s\n", same_from_threads(*backend, 8) ? "yes" : "no");
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
