// Products of matrices of 2 rows of 8 bytes (PRODUCTS_OF_PAIRS): one instruction multiplies two rows of
// weights with two rows of x. Eight values of a row, two words, lie side by side for it; other instruction
// sets read one word of each row at a time.
#ifndef AIRLLM_MATRIX_PRODUCTS_INL
#define AIRLLM_MATRIX_PRODUCTS_INL
#include "bytes.inl"

namespace cpu::ISA {
namespace {

#ifdef PRODUCTS_OF_PAIRS
constexpr int kTogether = 2;  // words of a row that lie side by side
#else
constexpr int kTogether = 1;
#endif

// The place of word `step` of a row among those of `rows` rows.
constexpr int place_of_step(int step, int row, int rows) {
  return (step / kTogether * rows + row) * kTogether + step % kTogether;
}

#ifdef PRODUCTS_OF_PAIRS
static_assert(LANES == 4, "a product of pairs has four sums");

INLINE Int low_halves(Int a, Int b) { return __builtin_shufflevector(a, b, 0, 1, 4, 5); }
INLINE Int high_halves(Int a, Int b) { return __builtin_shufflevector(a, b, 2, 3, 6, 7); }
INLINE Int low_words_in_turn(Int a, Int b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
INLINE Int high_words_in_turn(Int a, Int b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }

// Sums of two rows with four columns, as the products of pairs have them.
struct SumsOfPairs {
  Int first, second;  // of columns 0 and 1, of columns 2 and 3
  INLINE void add(Int rows, Int first_columns, Int second_columns) {
    first = PRODUCTS_OF_PAIRS(first, rows, first_columns);
    second = PRODUCTS_OF_PAIRS(second, rows, second_columns);
    stored::keep_in_register(first);
    stored::keep_in_register(second);
  }
  INLINE Int row(int r) const { return r ? high_halves(first, second) : low_halves(first, second); }
};
INLINE SumsOfPairs sums_of_pairs_from(Int row0, Int row1) {
  return {low_halves(row0, row1), high_halves(row0, row1)};
}
#endif

}  // namespace
}  // namespace cpu::ISA

#endif
