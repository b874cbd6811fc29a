// Instruction sets that add a few instructions to another one, BASE: the kernels that benefit are compiled
// again, all others are BASE's. Included like kernels.inl.
#ifndef ISA  // compiled alone: the set of editor.h, with no additions
#include "kernels.inl"
#define ISA extended
#define BASE alone
#define LANES 4
#define VECTORS 16
#endif

#if defined(TILES)
#include "../quantized/tiles_256.inl"
#include "../quantized/tiles_32.inl"
#elif defined(PRODUCTS_OF_PAIRS)
#include "../quantized/gemm.inl"
#elif defined(DOT_U8_I8) || defined(DOT_I8_I8)
#include "../quantized/gemm.inl"
#include "../quantized/gemv.inl"
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
// Panels of blocks of 256, as stored and interleaved. Products of fewer rows of x are BASE's.
#ifdef TILES
constexpr int kFewestRows = kTileRows, kFewestInterleavedRows = kTileRows;
template <class F>
void many_stored_rows(const LinearPart& part) {
  stored::many_rows_by_tiles<stored::ArithmeticOf<F>, stored::kPlanesOf<F>>(part, stored::unpack_rows<F>);
}
template <class F>
void many_interleaved_rows(const LinearPart& part) {
  stored::many_rows_by_tiles<stored::BandArithmetic<F>, stored::kPlanesOf<F>>(part, stored::unpack_band<F>);
}
#else
constexpr int kFewestRows = 4, kFewestInterleavedRows = kDecodeRows + 1;
template <class F>
void many_stored_rows(const LinearPart& part) {
  stored::by_panels256<F>(part);
}
template <class F>
void many_interleaved_rows(const LinearPart& part) {
  stored::many_rows256<stored::BandArithmetic<F>>(part, stored::unpack_band<F>);
}
#endif

using PanelsKernel = void(const LinearPart&);
struct ByPanels {
  PanelsKernel *as_stored, *interleaved;
};
template <class F>
constexpr ByPanels by_panels_of() {
  if constexpr (F::kValues != 256)
    return {};
  else if constexpr (cpu::words_of(F::kFormat).count == 0)
    return {many_stored_rows<F>, nullptr};
  else
    return {many_stored_rows<F>, many_interleaved_rows<F>};
}
constexpr ByPanels kByPanels[kFormats] = {{},
                                          {},
                                          {},
#define FORMAT(name, ...) by_panels_of<stored::name>(),
                                          AIRLLM_BLOCK_FORMATS(FORMAT)
#undef FORMAT
};

void linear(const LinearPart& part) {
  PanelsKernel* const kernel = kByPanels[part.format].as_stored;
  (kernel && part.packed_rows() >= kFewestRows ? kernel : BASE::kernels.stored.as_stored.linear)(part);
}
void linear_interleaved(const LinearPart& part) {
  PanelsKernel* const kernel = kByPanels[part.format].interleaved;
  (kernel && part.packed_rows() >= kFewestInterleavedRows ? kernel
                                                          : BASE::kernels.stored.interleaved.linear)(part);
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
