// Values of each dtype as doubles, arrays of their exact size, and what is wrong of a result. Part of
// test_kernels.cpp.

// Conversions by arithmetic, apart from what the kernels do with bits.
double value(float v) { return v; }
double value(Float16 v) {
  const int exponent = v.bits >> 10 & 31, fraction = v.bits & 1023;
  const double magnitude = exponent == 31 ? (fraction ? NAN : INFINITY)
                           : exponent     ? std::ldexp(1024 + fraction, exponent - 25)
                                          : std::ldexp(fraction, -24);
  return v.bits >> 15 ? -magnitude : magnitude;
}
double value(BFloat16 v) {
  const uint32_t bits = uint32_t{v.bits} << 16;
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

template <class T>
struct Type;
template <>
struct Type<float> {
  static constexpr DType dtype = cpu::kFloat32;
  static constexpr double tolerance = 1e-5, step = 0x1p-149;  // between the least numbers
  static float made(double v) { return static_cast<float>(v); }
};
template <>
struct Type<Float16> {
  static constexpr DType dtype = cpu::kFloat16;
  static constexpr double tolerance = 2e-3, step = 0x1p-24;
  static Float16 made(double v) {  // truncates: any value will do for an input
    if (v == 0) return {0};
    int exponent;
    const double fraction = std::frexp(std::fabs(v), &exponent);
    const int biased = std::max(exponent + 14, 0);
    const auto bits =
        static_cast<uint16_t>(biased << 10 | (biased ? static_cast<int>(fraction * 2048) & 1023 : 0));
    return {static_cast<uint16_t>(bits | (v < 0 ? 0x8000 : 0))};
  }
};
template <>
struct Type<BFloat16> {
  static constexpr DType dtype = cpu::kBFloat16;
  static constexpr double tolerance = 1e-2, step = 0x1p-133;
  static BFloat16 made(double v) {
    const auto f = static_cast<float>(v);
    uint32_t bits;
    std::memcpy(&bits, &f, sizeof bits);
    return {static_cast<uint16_t>(bits >> 16)};
  }
};

// Exactly n elements on the heap.
template <class T>
struct Block {
  std::unique_ptr<T[]> data;
  int64_t n;
  explicit Block(int64_t n_) : data(new T[n_]), n(n_) {}
  Reals values() const {
    Reals all(n);
    const T* const from = data.get();
    double* const to = all.data();
    for (int64_t i = 0; i < n; ++i) to[i] = value(from[i]);
    return all;
  }
};

// Programs are compiled unoptimized and run on emulators: loops over many numbers are of plain pointers, for
// an element of a Block or of a vector costs several calls there.
double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

void add_row(double* sum, const double* row, double times, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += times * row[i];
}

// The products of each row of x (m, k) with each of w (n, k).
Reals products_of_rows(const Reals& x, const Reals& w, int64_t k) {
  Reals all;
  for (size_t i = 0; i < x.size(); i += k)
    for (size_t j = 0; j < w.size(); j += k) all.push_back(dot(&x[i], &w[j], k));
  return all;
}

template <class T>
Block<T> sample(int64_t n) {
  static uint64_t state = 1;
  Block<T> block(n);
  T* const to = block.data.get();
  for (int64_t i = 0; i < n; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    to[i] = Type<T>::made((static_cast<double>(state >> 40) / (1 << 23) - 1) * 4);
  }
  return block;
}

template <class T>
void compare(const char* isa, const char* what, const Block<T>& got, const Reals& exact,
             double within = Type<T>::tolerance) {
  double scale = 1e-30, worst = 0;
  const T* const found = got.data.get();
  const double* const expected = exact.data();
  for (int64_t i = 0; i < got.n; ++i) {
    const double size = std::fabs(expected[i]);
    if (size > scale) scale = size;
  }
  for (int64_t i = 0; i < got.n; ++i) {
    const double difference = std::fabs(value(found[i]) - expected[i]);
    const double error = difference <= Type<T>::step / 2 ? 0 : difference / scale;
    worst = error > worst || std::isnan(error) ? error : worst;
  }
  ++checks;
  if (worst <= within) return;
  ++failures;
  std::printf("WRONG: %s %s, dtype %d, %lld elements: error %g\n", isa, what, Type<T>::dtype,
              static_cast<long long>(got.n), worst);
}

void expect(bool holds, const char* what) {
  ++checks;
  if (holds) return;
  ++failures;
  std::printf("WRONG: %s\n", what);
}
