// Instruction sets that add a few instructions to another one, BASE: the kernels that benefit are compiled
// again, all others are BASE's. Included like kernels.inl.
#ifndef ISA  // compiled alone: the set of editor.h, with no additions
#include "kernels.inl"
#define ISA extended
#define BASE alone
#define LANES 4
#define VECTORS 16
#endif

#if defined(LOOKS_UP_BYTES)
#include "../quantized/gemv/codebook_lookups.inl"
#elif defined(TILES)
#include "../quantized/gemm/tiles_256.inl"
#include "../quantized/gemm/tiles_32.inl"
#include "../quantized/interleaved/bands_by_tiles.inl"
#elif defined(PRODUCTS_OF_PAIRS)
#include "../quantized/gemm/gemm.inl"
#elif defined(DOT_U8_I8) || defined(DOT_I8_I8)
#include "../quantized/gemm/gemm.inl"
#include "../quantized/gemv/gemv.inl"
#endif
#ifdef NARROW_BF16
#include "../ops/elements.inl"
#include "../ops/rows.inl"
#endif
#ifdef DOT_BF16
#include "../ops/matmul.inl"
#endif

namespace cpu::ISA {
namespace {

#if defined(PRODUCTS_OF_PAIRS) || defined(TILES)
// Products with blocks of 256, as stored and interleaved, and the fewest rows of x for which they are faster
// than BASE's, as measured.
struct ByPanels {
  LinearKernel *as_stored, *interleaved;
  int64_t fewest_rows, fewest_interleaved_rows;
};

#ifdef TILES
// The codes of two planes take long to unpack; BASE's take no such time for q4_k and q5_k.
template <class F>
constexpr int64_t kFewestRows = stored::kPlanesOf<F> == 1 ? kTileRows
                                : F::kOffset              ? 64
                                                          : 32;
template <class F>
void many_stored_rows(const LinearPart& part) {
  stored::many_rows_by_tiles<stored::ArithmeticOf<F>, stored::kPlanesOf<F>>(part, stored::unpack_rows<F>);
}
template <class F>
void many_interleaved_rows(const LinearPart& part) {
  stored::many_rows_by_tiles<stored::BandArithmetic<F>, stored::kPlanesOf<F>>(part, stored::unpack_band<F>);
}
template <class F>  // parts of products with fewer rows may begin within a band
constexpr int64_t kFewestInterleavedRows = kFewestRows<F> > kDecodeRows ? kFewestRows<F> : kDecodeRows + 1;
#else
template <class F>
constexpr int64_t kFewestRows = 4;
template <class F>
constexpr int64_t kFewestInterleavedRows = kDecodeRows + 1;
template <class F>
void many_stored_rows(const LinearPart& part) {
  stored::by_panels256<F>(part);
}
template <class F>
void many_interleaved_rows(const LinearPart& part) {
  stored::many_rows256<stored::BandArithmetic<F>>(part, stored::unpack_band<F>);
}
#endif

template <class F>
constexpr ByPanels by_panels_of() {
  if constexpr (F::kValues != 256)
    return {};
  else if constexpr (cpu::words_of(F::kFormat).count == 0)
    return {many_stored_rows<F>, nullptr, kFewestRows<F>, 0};
  else
    return {many_stored_rows<F>, many_interleaved_rows<F>, kFewestRows<F>, kFewestInterleavedRows<F>};
}
constexpr ByPanels kByPanels[kFormats] = {{},
                                          {},
                                          {},
#define FORMAT(name, ...) by_panels_of<stored::name>(),
                                          AIRLLM_BLOCK_FORMATS(FORMAT)
#undef FORMAT
};

void linear(const LinearPart& part) {
#ifdef TILES
  if (stored::multiply_by_bands(part)) return;
#endif
  const ByPanels& by = kByPanels[part.format];
  (by.as_stored && part.packed_rows() >= by.fewest_rows ? by.as_stored
                                                        : BASE::kernels.stored.as_stored.linear)(part);
}
void linear_interleaved(const LinearPart& part) {
#ifdef TILES
  if (stored::multiply_by_bands(part)) return;
#endif
  const ByPanels& by = kByPanels[part.format];
  (by.interleaved && part.packed_rows() >= by.fewest_interleaved_rows
       ? by.interleaved
       : BASE::kernels.stored.interleaved.linear)(part);
}
#endif

#ifdef LOOKS_UP_BYTES
void linear(const LinearPart& part) {
  stored::kernel_by_lookups(part.format, BASE::kernels.stored.as_stored.linear)(part);
}
#endif

constexpr Kernels extend_base() {
  Kernels all = BASE::kernels;
  all.isa = STRING(ISA);
#if defined(PRODUCTS_OF_PAIRS) || defined(TILES)
#ifdef TILES
  all.prefill = with_tiles(all.prefill);
#else
  all.prefill = with_bytes(all.prefill);
#endif
  all.stored.as_stored.linear = linear;
  all.stored.interleaved.linear = linear_interleaved;
#elif defined(LOOKS_UP_BYTES)
  all.stored.as_stored.linear = linear;
#elif defined(DOT_U8_I8) || defined(DOT_I8_I8)
  all.prefill = with_bytes(all.prefill);
  all.stored = stored::stored_kernels;
#endif
#ifdef NARROW_BF16
  add_element_kernels<BFloat16>(all.elements, kBFloat16);
  add_row_kernels<BFloat16>(all.rows, kBFloat16);
#endif
#ifdef DOT_BF16
  all.matmul[kBFloat16] = matmul_pairs;
  all.prefill.float_product[kBFloat16] = pair_product;
#endif
  return all;
}

}  // namespace

constexpr Kernels kernels = extend_base();

}  // namespace cpu::ISA

#include "undef.inl"
