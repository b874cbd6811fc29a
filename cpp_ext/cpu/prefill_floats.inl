// Products of many rows with stored weights in float32: prefill.h says what each kernel is.

template <class T>
void floats_of_dense(float* to, const char* row, int64_t from, int64_t n) {
  map(to, n, Same{}, reinterpret_cast<const T*>(row) + from);
}

using FloatsOf = void(float* to, const char* row, int64_t from, int64_t n);
constexpr FloatsOf* kFloatsOf[kFormats] = {
    floats_of_dense<float>, floats_of_dense<Float16>, floats_of_dense<BFloat16>, floats_of<Q8_0>,
    floats_of<Q4_0>,        floats_of<Q4_1>,          floats_of<Q5_0>,           floats_of<Q5_1>,
    floats_of<Q2_K>,        floats_of<Q3_K>,          floats_of<Q4_K>,           floats_of<Q5_K>,
    floats_of<Q6_K>,        floats_of<IQ4_NL>,
};

template <class T>
void float_product(Format name, void* out, const void* x, const char* weight, const PrefillPart& part,
                   float* workspace) {
  const int64_t stride = part.k / kBlocks[name].values * kBlocks[name].bytes;
  multiply<T>(out, x, {unpack_weight, weight, stride, part.k, kFloatsOf[name]},
              {part.n, part.k, 0, part.m, part.n0, part.n1}, workspace);
}

bool none_by_bytes(Format) { return false; }

constexpr PrefillKernels by_floats() {
  PrefillKernels all = {};
  all.by_bytes = none_by_bytes;
  all.float_product[kFloat32] = float_product<float>;
  all.float_product[kFloat16] = float_product<Float16>;
  all.float_product[kBFloat16] = float_product<BFloat16>;
  return all;
}
