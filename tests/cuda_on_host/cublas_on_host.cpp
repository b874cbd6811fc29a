// A stand-in for cuBLAS: column-major products in host memory, on the stand-in runtime's streams.
#include <cstdint>
#include <cstring>
#include <functional>

namespace {

using Enqueue = void (*)(std::uintptr_t stream, int device, void (*work)(void*), void* argument);
Enqueue enqueue = nullptr;
std::uintptr_t stream_of_handle = 0;
int math_mode = -1, next_status = 0;

float widen(const void* p, int type, int64_t i) {
  if (type == 0) return static_cast<const float*>(p)[i];
  const uint16_t bits = static_cast<const uint16_t*>(p)[i];
  if (type == 14) {
    const uint32_t wide = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
  return static_cast<float>(static_cast<const _Float16*>(p)[i]);
}

void narrow(void* p, int type, int64_t i, float value) {
  if (type == 0) {
    static_cast<float*>(p)[i] = value;
  } else if (type == 14) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    static_cast<uint16_t*>(p)[i] = uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  } else {
    static_cast<_Float16*>(p)[i] = static_cast<_Float16>(value);
  }
}

int put(std::function<void()> work) {
  enqueue(
      stream_of_handle, 0,
      [](void* given) {
        auto* work = static_cast<std::function<void()>*>(given);
        (*work)();
        delete work;
      },
      new std::function<void()>(std::move(work)));
  return 0;
}

int failing() {
  const int status = next_status;
  next_status = 0;
  return status;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void on_host_use(Enqueue function) { enqueue = function; }
EXPORT void on_host_fail_next(int status) { next_status = status; }
EXPORT int on_host_math_mode() { return math_mode; }

EXPORT int cublasCreate_v2(void** handle) {
  *handle = &stream_of_handle;
  return failing();
}
EXPORT int cublasSetStream_v2(void*, std::uintptr_t stream) {
  stream_of_handle = stream;
  return 0;
}
EXPORT int cublasSetMathMode(void*, int mode) {
  math_mode = mode;
  return 0;
}
EXPORT int cublasGetProperty(int which, int* value) {
  *value = which == 0 ? 13 : 9;
  return 0;
}
EXPORT const char* cublasGetStatusString(int status) {
  return status == 13 ? "CUBLAS_STATUS_EXECUTION_FAILED" : "another";
}

EXPORT int cublasGemmStridedBatchedEx_64(void*, int ta, int tb, int64_t m, int64_t n, int64_t k,
                                         const float* alpha, const void* a, int at, int64_t lda, long long sa,
                                         const void* b, int bt, int64_t ldb, long long sb, const float* beta,
                                         void* c, int ct, int64_t ldc, long long sc, int64_t batch,
                                         int compute, int) {
  const int64_t a_rows = ta ? k : m;
  if (ta > 1 || tb || compute != 68 || *beta != 0 || lda < a_rows || ldb < k || ldc < m) return 7;
  if (const int status = failing()) return status;
  const float scale = *alpha;
  return put([=] {
    for (int64_t item = 0; item < batch; ++item)
      for (int64_t j = 0; j < n; ++j)
        for (int64_t i = 0; i < m; ++i) {
          float sum = 0;
          for (int64_t l = 0; l < k; ++l)
            sum += widen(a, at, item * sa + (ta ? l + i * lda : i + l * lda)) *
                   widen(b, bt, item * sb + l + j * ldb);
          narrow(c, ct, item * sc + i + j * ldc, scale * sum);
        }
  });
}

EXPORT int cublasGemmEx_64(void* h, int ta, int tb, int64_t m, int64_t n, int64_t k, const float* alpha,
                           const void* a, int at, int64_t lda, const void* b, int bt, int64_t ldb,
                           const float* beta, void* c, int ct, int64_t ldc, int compute, int algorithm) {
  return cublasGemmStridedBatchedEx_64(h, ta, tb, m, n, k, alpha, a, at, lda, 0, b, bt, ldb, 0, beta, c, ct,
                                       ldc, 0, 1, compute, algorithm);
}
