// Rows that are written around the caches, from every place in a line: whole lines and what is beside them
// take different ways. Part of test_kernels.cpp.

// n elements from the place `at` of a line of 64 bytes on, with a line at either side that must stay as it
// is.
template <class T>
struct Placed {
  static constexpr int64_t kLine = 64 / sizeof(T);
  Block<T> all;
  T* data;
  int64_t n;

  Placed(int64_t n_, int64_t at) : all(n_ + 4 * kLine), n(n_) {
    std::memset(all.data.get(), 0x5a, all.n * sizeof(T));
    const auto address = reinterpret_cast<uintptr_t>(all.data.get() + kLine);
    data = all.data.get() + kLine + (64 - address % 64) % 64 / sizeof(T) + at;
  }

  Block<T> values() const {
    Block<T> copy(n);
    std::memcpy(copy.data.get(), data, n * sizeof(T));
    return copy;
  }

  bool alone() const {
    const auto* const begin = reinterpret_cast<const char*>(data);
    const auto *from = reinterpret_cast<const char*>(all.data.get()), *to = from + all.n * sizeof(T);
    return std::all_of(from, begin, [](char c) { return c == 0x5a; }) &&
           std::all_of(begin + n * sizeof(T), to, [](char c) { return c == 0x5a; });
  }
};

// run(out, x) gives `exact`; in place too, where `x` is what is overwritten.
template <class T, class Run>
void check_stream(const char* isa, const char* what, const Block<T>& x, const Reals& exact, int64_t at,
                  Run run) {
  for (int in_place = 0; in_place < 2; ++in_place) {
    Placed<T> out(x.n, at);
    if (in_place) std::memcpy(out.data, x.data.get(), x.n * sizeof(T));
    run(out.data, in_place ? out.data : x.data.get());
    compare(isa, what, out.values(), exact);
    expect(out.alone(), what);
  }
}

template <class T>
void check_streams(const cpu::Kernels& kernels, int64_t dim, int64_t at) {
  constexpr DType dtype = Type<T>::dtype;
  const cpu::Rows rows{4, dim, true};
  const Block<T> x = sample<T>(rows.count * dim), y = sample<T>(x.n);
  const Block<float> w = sample<float>(dim);
  const auto normed = [&](Reals row) { return rms_norm(row, w.values(), 1e-3); };
  const auto scaled = [](Reals row) {
    for (double& v : row) v *= 0.3;
    return softmax(row);
  };
  Reals silus = x.values();
  for (double& v : silus) v = silu(v);
  check_stream(kernels.isa, "silu, streamed", x, silus, at,
               [&](T* out, const T* from) { kernels.elements.silu[dtype](out, from, x.n, true); });
  check_stream(kernels.isa, "softmax, streamed", x, by_rows(x.values(), dim, scaled), at,
               [&](T* out, const T* from) { kernels.rows.softmax[dtype](out, from, {}, rows, 0.3f); });
  check_stream(kernels.isa, "rms_norm, streamed", x, by_rows(x.values(), dim, normed), at,
               [&](T* out, const T* from) {
                 kernels.rows.rms_norm[dtype][true](out, from, w.data.get(), rows, 1e-3f);
               });

  Reals sums = x.values();
  for (int64_t i = 0; i < x.n; ++i) sums[i] += value(y.data[i]);
  for (int64_t beside : {at, at + 1}) {  // the other result's place, as it is or not
    Placed<T> norms(x.n, beside);
    check_stream(kernels.isa, "add_rms_norm's sum, streamed", x, sums, at, [&](T* out, const T* from) {
      kernels.rows.add_rms_norm[dtype](out, norms.data, from, y.data.get(), values_of(w), rows, 1e-3f);
    });
    compare(kernels.isa, "add_rms_norm, streamed", norms.values(), by_rows(sums, dim, normed));
    expect(norms.alone(), "add_rms_norm, streamed");
  }
}

template <class T>
void check_streams(const cpu::Kernels& kernels) {
  for (int64_t dim : {16, 17, 31, 32, 64, 65, 100, 192, 1024})
    for (int64_t at = 0; at < Placed<T>::kLine; ++at) check_streams<T>(kernels, dim, at);
  for (int64_t dim : {8192, 8292})  // all that softmax keeps; more than is summed in one piece
    check_streams<T>(kernels, dim, 3);
}
