// The backends of airllm for C++ programs, without Python:
//
//   #include <airllm/backend/backends.h>
//   auto* cpu = airllm::backend::BackendRegistry::get_instance().get_backend("cpu");
//   cpu->rms_norm(out, x, weight, rows, dim);
//
//   g++ main.cpp $(python -m airllm cpp-flags) -o main
//
// Ops: silu, gelu, swiglu, geglu; rms_norm, add_rms_norm, layer_norm, softmax, apply_rope; matmul, linear,
// attention; quantize, dequantize. `airllm.tensor_ops` defines them. Several threads may call any function
// here at the same time; an op uses its own threads (set_num_threads).
//
// The environment variables AIRLLM_CPU_ISA and AIRLLM_NUM_THREADS have the same effect as in Python. Wrong
// arguments throw std::invalid_argument ("rms_norm: dim has value -1, expected 0 or more"). A backend that
// cannot run here or lacks an op throws std::runtime_error with the reason.
#pragma once
#include <airllm/backend/shipped.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace airllm::backend {

enum class DType : int { FLOAT32, FLOAT16, BFLOAT16, BOOL };  // BOOL: for masks only, one byte each

// A dense array that an op reads; null if it is optional and omitted. A pointer to float32 converts
// implicitly.
struct Input {
  const void* data = nullptr;
  DType dtype = DType::FLOAT32;

  Input() = default;
  Input(std::nullptr_t) {}
  Input(const float* floats) : data(floats) {}
  Input(const bool* mask) : data(mask), dtype(DType::BOOL) {}
  Input(const void* data_, DType dtype_) : data(data_), dtype(dtype_) {}
};

// A dense array that an op writes. It may be one of the inputs of its shape, except for matmul, linear and
// attention. It must not overlap an input partially.
struct Output {
  void* data = nullptr;
  DType dtype = DType::FLOAT32;

  Output(float* floats) : data(floats) {}
  Output(void* data_, DType dtype_) : data(data_), dtype(dtype_) {}
};

// A weight (n, k) as stored: rows of floats, or of blocks in one of ggml's formats, such as "q4_k". An
// unknown name throws std::invalid_argument, which lists all formats.
struct Weight {
  const void* data;
  const char* format;  // or "f32", "f16", "bf16"

  Weight(const float* floats) : data(floats), format("f32") {}
  Weight(const void* blocks, const char* format_) : data(blocks), format(format_) {}
};

// The bytes of a row of k values; k must be a whole number of blocks.
int64_t row_bytes(const char* format, int64_t k);

enum class Gelu : int { TANH, NONE };  // the tanh form, or the erf form

// q is (batch, heads, queries, dim), k is (batch, kv_heads, keys, dim), v is (batch, kv_heads, keys,
// value_dim), and out is (batch, heads, queries, value_dim). heads is a multiple of kv_heads.
struct AttentionShape {
  int64_t batch, heads, kv_heads, queries, keys, dim, value_dim;
  // Rows allocated for the keys (and values) of each head. 0: as many as `keys`.
  int64_t capacity = 0;
};

struct AttentionOptions {
  bool causal = false;            // the last query is at the position of the last key
  std::optional<float> scale;     // else 1 / sqrt(dim)
  std::optional<float> softcap;   // scores become softcap * tanh(score / softcap)
  std::optional<int64_t> window;  // each query sees at most this many keys, the last ones
  Input mask;                     // (queries, keys): bool keeps where true, floats are added
  Input sinks;                    // (heads): one more score for each query, without a value
};

// One backend. A program's own subclass implements get_name(), why_not(), and the ops that it supports; the
// others throw. Pointers are to host memory, and sizes count elements. float32, float16 and bfloat16 are
// computed in float32. Inputs have the dtype of x, except weights, biases, masks, cos and sin.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string get_name() const = 0;
  // The reason why it cannot run here; "" if it can.
  virtual std::string why_not() const = 0;
  bool is_available() const { return why_not().empty(); }
  BackendType get_type() const { return type_; }

  // One line, such as "CPU (avx2, 8 threads)".
  virtual std::string get_device() const { return get_name(); }
  // The maximum number of threads of an op, for the whole process.
  virtual int get_num_threads() const { return 1; }
  virtual void set_num_threads(int n);

  // Each array has n elements.
  virtual void silu(Output out, Input x, int64_t n) const;
  virtual void gelu(Output out, Input x, int64_t n, Gelu form = Gelu::TANH) const;
  virtual void swiglu(Output out, Input gate, Input up, int64_t n) const;
  virtual void geglu(Output out, Input gate, Input up, int64_t n, Gelu form = Gelu::TANH) const;

  // x and out (rows, dim); weight and bias (dim), of the dtype of x or float32.
  virtual void rms_norm(Output out, Input x, Input weight, int64_t rows, int64_t dim,
                        float eps = 1e-6f) const;
  // sum = x + residual, normed = rms_norm(sum).
  virtual void add_rms_norm(Output sum, Output normed, Input x, Input residual, Input weight, int64_t rows,
                            int64_t dim, float eps = 1e-6f) const;
  // `bias` may be null.
  virtual void layer_norm(Output out, Input x, Input weight, Input bias, int64_t rows, int64_t dim,
                          float eps = 1e-5f) const;
  // mask (mask_rows, dim): row i of x has row i % mask_rows of it.
  virtual void softmax(Output out, Input x, int64_t rows, int64_t dim, float scale = 1.f, Input mask = {},
                       int64_t mask_rows = 1) const;
  // x and out (heads, positions, dim); cos and sin (positions, pairs) of any float dtype. Pairs are
  // (i, i + pairs), or interleaved: (2 i, 2 i + 1).
  virtual void apply_rope(Output out, Input x, Input cos, Input sin, int64_t heads, int64_t positions,
                          int64_t dim, int64_t pairs, bool interleaved = false) const;

  // out (m, n) = a (m, k) b (k, n).
  virtual void matmul(Output out, Input a, Input b, int64_t m, int64_t n, int64_t k) const;
  // out (m, n) = x (m, k) weight (n, k)^T + bias (n), which may be null and has any float dtype.
  virtual void linear(Output out, Input x, Weight weight, Input bias, int64_t m, int64_t n, int64_t k) const;
  virtual void attention(Output out, Input q, Input k, Input v, const AttentionShape& shape,
                         const AttentionOptions& options = {}) const;

  // Converts x (rows, k) to blocks, in rows of row_bytes(format, k) bytes. A format without a quantizer
  // throws std::invalid_argument, which lists those that have one.
  virtual void quantize(void* blocks, const char* format, Input x, int64_t rows, int64_t k) const;
  virtual void dequantize(float* out, Weight q, int64_t rows, int64_t k) const;

 private:
  friend class BackendRegistry;
  BackendType type_ = BackendType::ADDED;
};

// All backends of this process. The pointers that it returns stay valid until the process ends.
class BackendRegistry {
 public:
  static BackendRegistry& get_instance();

  // The backends that can run here, in order of preference.
  std::vector<BackendType> get_available_backends() const;
  // All known backends, whether they can run or not.
  std::vector<BackendType> get_backends() const;
  // Null if there is no such backend. A backend that is returned may be unable to run: check is_available().
  // Names are those of get_name() and of Python: "cpu", "cpp" and "openmp" are the same backend. The case of
  // letters does not matter.
  Backend* get_backend(BackendType type) const;
  Backend* get_backend(const std::string& name) const;
  // The backend that was set, else the preferred one. std::runtime_error with all reasons if none can run
  // here.
  Backend* get_default_backend() const;
  // std::invalid_argument for an unknown name, std::runtime_error for one that cannot run here.
  void set_default_backend(const std::string& name);

  // Adds a program's own backend. It may have the name of a backend that cannot run here, and then takes its
  // place and type. std::invalid_argument if a backend of that name can run.
  BackendType add(std::unique_ptr<Backend> backend);

 private:
  BackendRegistry();
  Backend* find(const std::string& name) const;   // by any of its names
  Backend* named(const std::string& name) const;  // by its main name

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Backend>> backends_, replaced_;
  Backend* default_ = nullptr;
};

inline Backend* get_default_backend() { return BackendRegistry::get_instance().get_default_backend(); }

}  // namespace airllm::backend
