// Stored weights of every format, and products of many rows with them. Part of test_kernels.cpp.

// Gives the scales and offsets of a block a moderate exponent: others would make NaN of all.
void set_exponents(cpu::Format format, uint8_t* block) {
  static const std::map<cpu::Format, std::vector<int>> halves = {
      {cpu::kF32, {}},      {cpu::kF16, {}},        {cpu::kBF16, {}},    {cpu::kQ4_1, {0, 2}},
      {cpu::kQ5_1, {0, 2}}, {cpu::kQ2_K, {80, 82}}, {cpu::kQ3_K, {108}}, {cpu::kQ4_K, {0, 2}},
      {cpu::kQ5_K, {0, 2}}, {cpu::kQ6_K, {208}},    {cpu::kMXFP4, {}},   {cpu::kIQ1_M, {}},
      {cpu::kTQ1_0, {52}},  {cpu::kTQ2_0, {64}}};
  const auto found = halves.find(format);
  for (int at : found == halves.end() ? std::vector<int>{0} : found->second)
    block[at + 1] = 0x20 | (block[at + 1] & 0x83);
  if (format == cpu::kMXFP4) block[0] = 0x78 | (block[0] & 3);
  if (format == cpu::kIQ1_M) {  // the upper two of four nibbles of a float16
    block[55] = 0x20 | (block[55] & 0x8f);
    block[53] &= 0x3f;
  }
}

// Blocks of any bytes, but for these exponents.
Block<uint8_t> stored(cpu::Format format, int64_t n, int64_t k) {
  const int bytes = cpu::kBlocks[format].bytes;
  const int64_t blocks = n * k / cpu::kBlocks[format].values;
  Block<uint8_t> all(blocks * bytes);
  const Block<float> random = sample<float>(all.n), values = sample<float>(blocks);
  for (int64_t i = 0; i < all.n; ++i)
    all.data[i] = static_cast<uint8_t>(static_cast<int>(random.data[i] * 63 + 128));
  for (int64_t b = 0; b < blocks; ++b) set_exponents(format, &all.data[b * bytes]);
  for (int64_t i = 0; i < blocks; ++i) {
    const Float16 half = Type<Float16>::made(values.data[i]);
    const BFloat16 brain = Type<BFloat16>::made(values.data[i]);
    if (format == cpu::kF32) std::memcpy(&all.data[4 * i], &values.data[i], 4);
    if (format == cpu::kF16) std::memcpy(&all.data[2 * i], &half, 2);
    if (format == cpu::kBF16) std::memcpy(&all.data[2 * i], &brain, 2);
  }
  return all;
}

// One part of a product with a stored weight, by bytes where the set can and in float32 elsewhere.
template <class T>
void multiply_stored(const cpu::Kernels& all, cpu::Format format, Block<T>& out, const Block<T>& x,
                     const Block<uint8_t>& weight, const cpu::PrefillPart& part) {
  const cpu::PrefillKernels& kernels = all.prefill;
  const DType dtype = Type<T>::dtype;
  const char* const w = reinterpret_cast<const char*>(weight.data.get());
  if (!kernels.by_bytes(format)) {
    Block<float> workspace(all.matmul_workspace / 4);
    return kernels.float_product[dtype](format, out.data.get(), x.data.get(), w, part, workspace.data.get());
  }
  const int64_t strips = (part.m + kernels.rows - 1) / kernels.rows;
  Block<char> rows(strips * kernels.strip_bytes(format, part.k));
  Block<char> workspace(kernels.workspace_bytes(format, part.k));
  kernels.quantize[dtype](format, rows.data.get(), x.data.get(), part.m, part.k, 0, strips / 2);
  kernels.quantize[dtype](format, rows.data.get(), x.data.get(), part.m, part.k, strips / 2, strips);
  kernels.product(format, out.data.get(), dtype, rows.data.get(), w, part, workspace.data.get());
}

// The weight's values (n, k): a product of it with the unit matrix, in float32. What each byte means is
// tested from Python, against gguf.
Reals values_of(const cpu::Kernels& kernels, cpu::Format format, const Block<uint8_t>& weight, int64_t n,
                int64_t k) {
  Block<float> unit(k * k), workspace(kernels.matmul_workspace / 4), transposed(k * n);
  for (int64_t i = 0; i < k * k; ++i) unit.data[i] = i % (k + 1) == 0;
  kernels.prefill.float_product[cpu::kFloat32](format, transposed.data.get(), unit.data.get(),
                                               reinterpret_cast<const char*>(weight.data.get()),
                                               {k, n, k, 0, n}, workspace.data.get());
  Reals values(n * k);
  for (int64_t i = 0; i < n * k; ++i) values[i] = transposed.data[i % k * n + i / k];
  return values;
}

// Whole numbers of 128ths whose largest is 127 in every 32: as bytes they are exact.
template <class T>
Block<T> exact_as_bytes(int64_t n) {
  Block<T> x = sample<T>(n);
  for (int64_t i = 0; i < n; ++i)
    x.data[i] = Type<T>::made((i % 32 ? std::trunc(value(x.data[i]) * 31) : 127) / 128);
  return x;
}

template <class T>
void check_stored(const cpu::Kernels& kernels, cpu::Format format, int64_t m, int64_t n, int64_t k) {
  const Block<uint8_t> weight = stored(format, n, k);
  const Reals values = values_of(kernels, format, weight, n, k);
  const Block<T> x = exact_as_bytes<T>(m * k);
  Block<T> out(m * n);
  const int64_t cut = n / 2 / 64 * 64;  // in parts, as threads do it
  multiply_stored(kernels, format, out, x, weight, {m, n, k, 0, cut});
  multiply_stored(kernels, format, out, x, weight, {m, n, k, cut, n});
  compare(kernels.isa, cpu::kBlocks[format].name, out, products_of_rows(x.values(), values, k));
}

template <class T>
void check_stored(const cpu::Kernels& kernels) {
  for (int i = 0; i < cpu::kFormats; ++i) {
    const auto format = static_cast<cpu::Format>(i);
    check_stored<T>(kernels, format, 3, 1, 256);
    check_stored<T>(kernels, format, 13, 133, 256);
    if (cpu::kBlocks[format].values == 1) check_stored<T>(kernels, format, 9, 35, 301);
  }
}
