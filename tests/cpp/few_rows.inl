// Products of a few rows with stored weights. Included by test_kernels.cpp, after stored.inl.

struct AlignedBytes {
  char* const data;
  explicit AlignedBytes(int64_t n)
      : data(static_cast<char*>(cpu::allocate_aligned(64, std::max<int64_t>(n, 64)))) {}
  AlignedBytes(const AlignedBytes&) = delete;
  ~AlignedBytes() { cpu::free_aligned(data); }
};

void pack_row(const cpu::Kernels& kernels, bool interleaved, cpu::Format format, char* to, const float* x,
              int64_t k, float* error) {
  ++checks;
  if (kernels.stored.products(interleaved).pack(format, to, x, k, error)) return;
  ++failures;
  std::printf("WRONG: %s refuses to pack a row for %s\n", kernels.isa, cpu::kBlocks[format].name);
}

template <class T>
void pack_rows(const cpu::Kernels& kernels, bool interleaved, cpu::Format format, char* to, const Block<T>& x,
               int64_t k, bool with_rounding_error) {
  const int64_t bytes = kernels.stored.products(interleaved).packed_bytes(format, k);
  const Block<float> wide(k), error(k);
  for (int64_t i = 0; i < x.n / k; ++i, to += bytes) {
    kernels.stored.widen(Type<T>::dtype, wide.data.get(), x.data.get() + i * k, k);
    pack_row(kernels, interleaved, format, to, wide.data.get(), k,
             with_rounding_error ? error.data.get() : nullptr);
    if (with_rounding_error)
      pack_row(kernels, interleaved, format, to += bytes, error.data.get(), k, error.data.get());
  }
}

Block<uint8_t> interleaved_copy(cpu::Format format, const Block<uint8_t>& weight, int64_t n, int64_t k) {
  Block<uint8_t> copy(weight.n), back(weight.n);
  const int64_t band = cpu::kBand * cpu::row_bytes(format, k);
  const auto at = [](const Block<uint8_t>& of, int64_t i) {
    return reinterpret_cast<char*>(of.data.get()) + i;
  };
  for (int64_t i = 0; i < n / cpu::kBand * band; i += band) {
    cpu::interleave_band(format, at(copy, i), at(weight, i), k);
    cpu::deinterleave_band(format, at(back, i), at(copy, i), k);
  }
  ++checks;
  if (!std::equal(back.data.get(), back.data.get() + back.n, weight.data.get())) {
    ++failures;
    std::printf("WRONG: a band of %s is not what was interleaved\n", cpu::kBlocks[format].name);
  }
  return copy;
}

// In two parts, as two threads do it. The weight is a block of its exact size, which may end where a mapped
// file does.
template <class T>
void check_linear(const cpu::Kernels& kernels, cpu::Format format, int64_t m, int64_t n, int64_t k,
                  bool with_rounding_error = false, bool interleaved = false) {
  const Block<uint8_t> weight = stored(format, n, k);
  const char* const bytes = reinterpret_cast<const char*>(weight.data.get());
  const Block<uint8_t> copy = interleaved ? interleaved_copy(format, weight, n, k) : Block<uint8_t>(0);
  const cpu::ProductKernels& products = kernels.stored.products(interleaved);
  const Block<T> x = with_rounding_error ? sample<T>(m * k) : exact_as_bytes<T>(m * k);
  const Block<float> bias = sample<float>(n);
  Block<float> values(n * k);
  kernels.stored.dequantize(format, values.data.get(), bytes, n * k);
  Reals exact = products_of_rows(x.values(), values.values(), k);
  for (int64_t i = 0; i < m * n; ++i) exact[i] += bias.data[i % n];
  const int64_t packed = products.packed_bytes(format, k);
  const AlignedBytes rows((with_rounding_error ? 2 : 1) * m * packed);
  pack_rows(kernels, interleaved, format, rows.data, x, k, with_rounding_error);
  Block<T> out(m * n);
  cpu::LinearPart part{format,
                       Type<T>::dtype,
                       reinterpret_cast<char*>(out.data.get()),
                       m,
                       n,
                       k,
                       0,
                       m > cpu::kDecodeRows && interleaved ? n / 3 / cpu::kBand * cpu::kBand : n / 3,
                       interleaved ? reinterpret_cast<const char*>(copy.data.get()) : bytes,
                       rows.data,
                       packed,
                       bias.data.get(),
                       with_rounding_error,
                       interleaved};
  products.linear(part);
  part.n0 = part.n1;
  part.n1 = n;
  products.linear(part);
  compare(kernels.isa,
          (std::string(interleaved ? "linear interleaved " : "linear ") + cpu::kBlocks[format].name).c_str(),
          out, exact, std::max(Type<T>::tolerance, with_rounding_error ? 1e-4 : 0.));
}

// Blocks times many rows of x.
Block<float> multiply_many(const cpu::Kernels& kernels, cpu::Format format, const Block<float>& x,
                           const Block<uint8_t>& weight, int64_t n, int64_t k, bool interleaved) {
  const int64_t m = x.n / k;
  Block<float> out(m * n);
  if (cpu::kBlocks[format].values == 32) {
    multiply_stored(kernels, format, out, x, weight, {m, n, k, 0, n, interleaved});
    return out;
  }
  const cpu::ProductKernels& products = kernels.stored.products(interleaved);
  const int64_t packed = products.packed_bytes(format, k);
  const AlignedBytes rows(m * packed);
  pack_rows(kernels, interleaved, format, rows.data, x, k, false);
  char* const to = reinterpret_cast<char*>(out.data.get());
  const char* const bytes = reinterpret_cast<const char*>(weight.data.get());
  products.linear(
      {format, cpu::kFloat32, to, m, n, k, 0, n, bytes, rows.data, packed, nullptr, false, interleaved});
  return out;
}

Block<uint8_t> weight_of(cpu::Format format, int64_t n, int64_t k, bool interleaved) {
  Block<uint8_t> plain = stored(format, n, k);
  if (!interleaved) return plain;
  return interleaved_copy(format, plain, n, k);
}

// Two sets that differ only in how they multiply integers.
void check_same_bits(const cpu::Kernels& kernels, const cpu::Kernels& others) {
  constexpr int64_t n = 48, k = 768;
  for (int i = cpu::kBF16 + 1; i < cpu::kFormats; ++i)
    for (const int64_t m : {5, 16, 101})
      for (const bool interleaved : {false, true}) {
        const auto format = static_cast<cpu::Format>(i);
        if (interleaved && !cpu::can_interleave(format, n, k)) continue;
        const Block<float> x = sample<float>(m * k);
        const Block<uint8_t> weight = weight_of(format, n, k, interleaved);
        const Block<float> one = multiply_many(kernels, format, x, weight, n, k, interleaved),
                           other = multiply_many(others, format, x, weight, n, k, interleaved);
        expect(std::memcmp(one.data.get(), other.data.get(), sizeof(float) * m * n) == 0,
               "two sets agree to the bit");
      }
}

// A row among many, and alone: blocks of 256 are multiplied and added in one order, whatever the way.
void check_bits_in_company(const cpu::Kernels& kernels, cpu::Format format, bool interleaved) {
  constexpr int64_t m = 103, n = 48, k = 768;
  if (interleaved && !cpu::can_interleave(format, n, k)) return;
  const Block<float> x = sample<float>(m * k);
  const Block<uint8_t> weight = weight_of(format, n, k, interleaved);
  const Block<float> all = multiply_many(kernels, format, x, weight, n, k, interleaved);
  for (int64_t row : {0, 95, 96, 102}) {
    Block<float> alone(k);
    std::copy_n(x.data.get() + row * k, k, alone.data.get());
    const Block<float> one = multiply_many(kernels, format, alone, weight, n, k, interleaved);
    expect(std::memcmp(one.data.get(), all.data.get() + row * n, sizeof(float) * n) == 0,
           "a row has the same bits alone");
  }
}

// The same bytes by the two ways that there are to unpack them.
void check_dequantize(const cpu::Kernels& kernels, cpu::Format format) {
  const Block<uint8_t> weight = stored(format, 3, 256);
  Block<float> values(3 * 256);
  kernels.stored.dequantize(format, values.data.get(), reinterpret_cast<const char*>(weight.data.get()),
                            values.n);
  compare(kernels.isa, "dequantize", values, values_of(kernels, format, weight, 3, 256));
}

// What bytes cannot hold, anywhere in a row.
void check_refused(const cpu::Kernels& kernels, cpu::Format format) {
  if (cpu::kBlocks[format].values == 1) return;
  constexpr int64_t k = 3 * 256;
  const AlignedBytes packed(kernels.stored.as_stored.packed_bytes(format, k));
  for (float wrong : {NAN, INFINITY, -INFINITY})
    for (int64_t at : {0, 33, 511, 767}) {
      const Block<float> x = exact_as_bytes<float>(k);
      x.data[at] = wrong;
      ++checks;
      if (!kernels.stored.as_stored.pack(format, packed.data, x.data.get(), k, nullptr)) continue;
      ++failures;
      std::printf("WRONG: %s packs %g for %s\n", kernels.isa, wrong, cpu::kBlocks[format].name);
    }
}

template <class T>
void check_interleaved(const cpu::Kernels& kernels, cpu::Format format) {
  const int64_t of = cpu::kBlocks[format].values;
  if (!cpu::can_interleave(format, cpu::kBand, of)) return;
  for (const auto& [m, n, blocks] :
       {std::tuple(1, 16, 1), std::tuple(1, 48, 5), std::tuple(2, 32, 3), std::tuple(3, 16, 4),
        std::tuple(8, 32, 2), std::tuple(13, 16, 9), std::tuple(17, 96, 3), std::tuple(99, 64, 1)})
    check_linear<T>(kernels, format, m, n, blocks * of, false, true);
  for (int64_t m : {1, 2, 5, 8}) check_linear<T>(kernels, format, m, 48, 3 * of, true, true);
}

template <class T>
void check_few_rows(const cpu::Kernels& kernels) {
  for (int i = 0; i < cpu::kFormats; ++i) {
    const auto format = static_cast<cpu::Format>(i);
    const int64_t of = cpu::kBlocks[format].values;
    for (const auto& [m, n, blocks] :
         {std::tuple(1, 5, 1), std::tuple(3, 21, 2), std::tuple(8, 5, 3), std::tuple(1, 70, 5),
          std::tuple(2, 9, 6), std::tuple(1, 5, 6), std::tuple(5, 9, 18), std::tuple(1, 6, 37)})
      check_linear<T>(kernels, format, m, n,
                      std::min<int64_t>(blocks * of, of == 1 ? blocks : 1184 / of * of));
    if (of == 1) check_linear<T>(kernels, format, 2, 7, 301);
    if (of == 256)  // these kernels take any number of rows
      for (int64_t rows : {4, 17, 99}) check_linear<T>(kernels, format, rows, 83, rows == 99 ? 256 : 6 * 256);
    if (of == 256)  // whole bands, and more of k than is interleaved at a time
      for (int64_t rows : {3, 5, 16})
        check_linear<T>(kernels, format, rows, 32, rows == 5 ? 17 * 256 : 2 * 256);
    check_interleaved<T>(kernels, format);
    if (sizeof(T) == sizeof(float)) {
      for (int64_t rows : {1, 2, 4, 8})
        for (int64_t n : {37, 48}) check_linear<T>(kernels, format, rows, n, of == 1 ? 96 : 3 * of, true);
      check_linear<T>(kernels, format, 1, 8, of == 1 ? 96 : 1184 / of * of, true);
      if (of == 256)
        for (const bool interleaved : {false, true}) check_bits_in_company(kernels, format, interleaved);
      check_dequantize(kernels, format);
      check_refused(kernels, format);
    }
  }
}
