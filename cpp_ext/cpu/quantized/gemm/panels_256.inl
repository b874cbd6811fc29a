// Products of several rows of x with blocks of 256 values. A panel is a block of each of LANES rows of
// weights, one row in each lane, unpacked once for all rows of x. x stays as one_row() reads it.
#ifndef AIRLLM_PANELS_256_INL
#define AIRLLM_PANELS_256_INL
#include "../../simd/matrix_products.inl"
#include "../../simd/transpose.inl"
#include "../blocks/blocks_codebook.inl"
#include "../gemv/gemv_256.inl"

namespace cpu::ISA {
namespace {
namespace stored {

// How the codes of a format are multiplied. kSigned: with signs, else less kZero. On sets whose dot product
// takes no signs, signed codes have kSignedZero added.
template <bool kSignedOf, int kZeroOf, int kLargestOf>
struct Codes256 {
  static constexpr bool kSigned = kSignedOf && !kSignedZero;
  static constexpr int kZero = kSignedOf ? kSignedZero : kZeroOf;
  static constexpr int kLargest = kLargestOf + (kSignedOf ? kSignedZero : 0);
};
// Which signed codes have their zero added, so that sums of pairs fit 16 bits: of four products a lane, or
// with AVX-512, which has no instruction for signs, of one.
#if defined(PAIRS_U8_I8) && !defined(DOT_U8_I8)
template <class F>
constexpr bool kWithoutSigns = F::kSigned && (VECTORS == 32 ? 2 : 8) * 127 * 2 * F::kLargest <= 32767;
#else
template <class F>
constexpr bool kWithoutSigns = F::kLargest == 1;  // ternary digits
#endif
template <class F>
struct CodesOf : std::conditional_t<kWithoutSigns<F>, Codes256<false, F::kLargest, 2 * F::kLargest>,
                                    Codes256<F::kSigned, F::kZero, F::kLargest>> {};

// Whether sums of pairs of products are multiplied by words, or sums of four by integers.
#ifdef PAIRS_U8_I8
#ifdef DOT_U8_I8
template <class F>
constexpr bool kInPairs = F::kSigned;
#else
template <class F>
constexpr bool kInPairs = true;
#endif
#else
template <class F>
constexpr bool kInPairs = false;
#endif

// How many places of 16 values, in the order of x, lie between the halves of a sub-block of 32.
template <class F>
constexpr int places_apart() {
  for (int place = 1; place < 16; ++place)
    if (order<F>.sub_block[place] == order<F>.sub_block[0]) return place;
  return 0;
}

// Steps of four codes, in the order of x, that are multiplied by one scale.
template <class F>
constexpr int steps_of_run() {
  return places_apart<F>() ? 8 : 4;
}

// The step that is the i-th of a run. The halves of a run of eight lie `apart`.
template <int kRun, int kApart>
constexpr int step_of(int run, int i) {
  if (kRun == 4) return 4 * run + i;
  return 4 * (run / kApart * 2 * kApart + run % kApart + i / 4 * kApart) + i % 4;
}

template <class F>
constexpr bool are_runs_whole() {
  constexpr int kRun = steps_of_run<F>(), kApart = places_apart<F>();
  for (int run = 0; run < 64 / kRun; ++run)
    for (int i = 0; i < kRun; ++i)
      if (order<F>.sub_block[step_of<kRun, kApart>(run, i) / 4] !=
          order<F>.sub_block[step_of<kRun, kApart>(run, 0) / 4])
        return false;
  return true;
}

// The steps whose sums of pairs fit 16 bits.
template <class F, class C>
constexpr int steps_of_chain() {
  constexpr int kFit = 32767 / (2 * 127 * C::kLargest), kMost = C::kSigned ? 2 : steps_of_run<F>();
  return kFit >= kMost ? kMost : kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
}

// Whether one instruction multiplies words by scales and adds them.
#ifdef ADD_SUMS_OF_PAIRS
constexpr bool kAddsScaledWords = true;
#else
constexpr bool kAddsScaledWords = false;
#endif

// Whether it takes the sum of a run's products, for codes up to `largest`: the sum must fit 16 bits.
constexpr bool fits_word(int run, bool is_signed, int largest) {
  return kAddsScaledWords && !is_signed && 4 * run * 127 * largest <= 32767;
}

// What the arithmetic of a panel depends on. Formats of signed codes share theirs.
template <int kRunOf, int kApartOf, int kChainOf, int kSubsOf, bool kSignedOf, bool kOffsetOf, int kZeroOf,
          bool kSmallOf>
struct Arithmetic256 {
  static constexpr int kRun = kRunOf, kApart = kApartOf, kChain = kChainOf, kSubs = kSubsOf, kZero = kZeroOf;
  static constexpr bool kSigned = kSignedOf, kOffset = kOffsetOf, kSmall = kSmallOf;
  static constexpr int step(int run, int i) { return step_of<kRun, kApart>(run, i); }
};
template <class F, int kChain, class C = CodesOf<F>>
using ArithmeticBy =
    Arithmetic256<steps_of_run<F>(), places_apart<F>(), kChain, C::kSigned ? 16 : 256 / F::kUnit, C::kSigned,
                  F::kOffset, C::kSigned ? 0 : C::kZero,
                  !kInPairs<C> && fits_word(steps_of_run<F>(), C::kSigned, C::kLargest)>;
template <class F>
using ArithmeticOf = ArithmeticBy<F, steps_of_chain<F, CodesOf<F>>()>;

template <class A>
struct Panel256 {
  static constexpr int kRuns = 64 / A::kRun;
  int32_t codes[64][LANES];      // of each row, in the order of x; place_of_step() says where
  int32_t scales[kRuns][LANES];  // of the sub-block of each run
  // Pairs of int16 for x's sums: the offsets or, without any, the scales times -kZero.
  int32_t factors[A::kSubs / 2][LANES];
  float scale[LANES], offset_scale[LANES];
};
template <class F>
using PanelOf = Panel256<ArithmeticOf<F>>;

// Four rows of four words -> four columns, in lanes [first, first + 4) of each.
INLINE void transpose_words(int32_t (*to)[LANES], int first, const FourInts* rows) {
  FourInts columns[4] = {rows[0], rows[1], rows[2], rows[3]};
  transpose<4>(columns);
  for (int i = 0; i < 4; ++i) __builtin_memcpy(to[i] + first, &columns[i], 16);
}

// The scale of one sub-block of each row, from the words of two: as an integer, or twice as a word.
template <class A>
INLINE Int scale_of_pair(Int words, int odd) {
  if (!kInPairs<A>) return odd ? words >> 16 : words << 16 >> 16;
  const Bits bits = (Bits)words;
  return odd ? (Int)(bits >> 16 | (bits & 0xffff0000u)) : (Int)((bits & 0xffffu) | bits << 16);
}

// A scale as add_scaled() takes it.
template <class A>
INLINE Int scale_of_run(Int scale) {
  return A::kSmall ? scale & 0xffff : scale;
}

// Pairs of words by a number.
INLINE Int words_by(Int words, int number) {
  return (((words << 16 >> 16) * number) & 0xffff) | ((words >> 16) * number << 16);
}

template <class F>
INLINE void unpack_scales(PanelOf<F>* panel, const char* const (&w)[LANES], int64_t at) {
  constexpr int kWords = SubBlocks<F::kUnit>::kWords;
  alignas(64) FourInts scales[kWords][LANES], offsets[kWords][LANES];
  for (int r = 0; r < LANES; ++r) {
    const SubBlocks<F::kUnit> sub = F::sub_blocks(w[r] + at);
    for (int i = 0; i < kWords; ++i) {
      scales[i][r] = (FourInts)sub.scales[i];
      if (F::kOffset) offsets[i][r] = (FourInts)sub.offsets[i];
    }
    panel->scale[r] = F::block_scale(w[r] + at);
    if constexpr (F::kOffset) panel->offset_scale[r] = half_at(w[r] + at + F::kOffsetScale);
  }
  alignas(64) int32_t pairs[4 * kWords][LANES];
  for (int i = 0; i < kWords; ++i)
    for (int r = 0; r < LANES; r += 4) {
      transpose_words(pairs + 4 * i, r, scales[i] + r);
      if (F::kOffset) transpose_words(panel->factors + 4 * i, r, offsets[i] + r);
    }
  for (int run = 0; run < PanelOf<F>::kRuns; ++run) {
    const int sub = order<F>.sub_block[ArithmeticOf<F>::step(run, 0) / 4];
    const Int scale = scale_of_pair<ArithmeticOf<F>>(load_int(pairs[sub / 2]), sub % 2);
    store_int(panel->scales[run], scale_of_run<ArithmeticOf<F>>(scale));
  }
  if (!F::kOffset && kHasZero<ArithmeticOf<F>>)
    for (int i = 0; i < 4 * kWords; ++i)
      store_int(panel->factors[i], words_by(load_int(pairs[i]), -ArithmeticOf<F>::kZero));
}

// Codes as a panel has them.
template <class F>
INLINE Int codes_of_panel(Bytes codes) {
  constexpr bool kMoved = F::kSigned && !ArithmeticOf<F>::kSigned;
  return (Int)(kMoved ? (Bytes)((UnsignedBytes)codes + (uint8_t)ArithmeticOf<F>::kZero) : codes);
}

// The codes of a block of each row, of which codes[row].vector(v) are some in order.
template <class F, class Codes, int... I>
INLINE void set_codes(PanelOf<F>* panel, const Codes (&codes)[LANES], std::integer_sequence<int, I...>) {
#pragma GCC unroll 16  // makes the number a constant
  for (int vector = 0; vector < 256 / kStep; ++vector) {
    Int rows[LANES] = {codes_of_panel<F>(codes[I].vector(vector))...};
#ifdef PRODUCTS_OF_PAIRS
    for (int i = 0; i < 2; ++i) {
      store_int(panel->codes[vector * LANES + i], low_halves(rows[2 * i], rows[2 * i + 1]));
      store_int(panel->codes[vector * LANES + 2 + i], high_halves(rows[2 * i], rows[2 * i + 1]));
    }
#else
    transpose<LANES>(rows);
    (store_int(panel->codes[vector * LANES + I], rows[I]), ...);
#endif
  }
}

// The block at byte `at` of each row.
template <class F, int... I>
INLINE void unpack_panel(PanelOf<F>* panel, const char* const (&w)[LANES], int64_t at,
                         std::integer_sequence<int, I...> lanes) {
  const typename F::PanelReader codes[LANES] = {typename F::PanelReader(w[I] + at)...};
  set_codes<F>(panel, codes, lanes);
  unpack_scales<F>(panel, w, at);
}
template <class F>
void unpack_panel(PanelOf<F>* panel, const char* const (&w)[LANES], int64_t at) {
  unpack_panel<F>(panel, w, at, Lanes{});
}

INLINE Int four_codes(const Group256& x, int step) { return four_in_all_lanes(x.values + 4 * step); }

// sum + dots * scales. The high words of small ones' scales are 0.
template <class A>
INLINE Int add_scaled(Int sum, Int dots, Int scales) {
#ifdef ADD_SUMS_OF_PAIRS
  if constexpr (A::kSmall) return ADD_SUMS_OF_PAIRS(sum, dots, scales);
#endif
  return sum + dots * scales;
}

// sum[m] += the products of one run of codes with row m of x, times the scales of their sub-blocks
#ifdef PAIRS_U8_I8
template <class A, int M>
INLINE void add_run_of_pairs(Int (&sum)[M], const Panel256<A>& panel, int run,
                             const Group256* const (&x)[M]) {
  constexpr int kRun = A::kRun, kChain = A::kChain;
#pragma GCC unroll 8
  for (int s = 0; s < kRun; s += kChain) {
    Pairs pairs[M] = {};
#pragma GCC unroll 8
    for (int i = s; i < s + kChain; ++i)
      for (int m = 0; m < M; ++m) {
        const int step = A::step(run, i);
        pairs[m] += pairs_of_codes<A>(load_bytes(panel.codes[step]), (Bytes)four_codes(*x[m], step));
        keep_in_register(pairs[m]);
      }
    for (int m = 0; m < M; ++m) sum[m] += SUMS_OF_PAIRS(pairs[m], load_int(panel.scales[run]));
  }
}
#endif
#ifdef PRODUCTS_OF_PAIRS
// Two rows of x at a time; an odd last one is multiplied twice.
template <class A, int M>
INLINE void add_run(Int (&sum)[M], const Panel256<A>& panel, int run, const Group256* const (&x)[M]) {
  constexpr int kRun = A::kRun;
  SumsOfPairs dots[(M + 1) / 2] = {};
#pragma GCC unroll 8
  for (int i = 0; i < kRun; i += 4) {
    const int step = A::step(run, i);
    const int32_t (*const codes)[LANES] = panel.codes + step;
    for (int m = 0; m < M; m += 2) {
      const Int one = load_int(x[m]->values + 4 * step),
                other = m + 1 < M ? load_int(x[m + 1 < M ? m + 1 : m]->values + 4 * step) : one;
      dots[m / 2].add(low_halves(one, other), load_int(codes[0]), load_int(codes[1]));
      dots[m / 2].add(high_halves(one, other), load_int(codes[2]), load_int(codes[3]));
    }
  }
  for (int m = 0; m < M; ++m) sum[m] += dots[m / 2].row(m % 2) * load_int(panel.scales[run]);
}
#else
template <class A, int M>
INLINE void add_run(Int (&sum)[M], const Panel256<A>& panel, int run, const Group256* const (&x)[M]) {
  constexpr int kRun = A::kRun;
  Int dots[M] = {};
#pragma GCC unroll 8
  for (int i = 0; i < kRun; ++i)
    for (int m = 0; m < M; ++m) {
      const int step = A::step(run, i);
      dots[m] = dot_in_lanes(dots[m], load_bytes(panel.codes[step]), (Bytes)four_codes(*x[m], step));
      keep_in_register(dots[m]);
    }
  for (int m = 0; m < M; ++m) sum[m] = add_scaled<A>(sum[m], dots[m], load_int(panel.scales[run]));
}
#endif

// total[m] += a block of LANES rows of weights with one of row m of x
template <class A, int M>
INLINE void add_panel(Vec (&total)[M], const Panel256<A>& panel, const Group256* const (&x)[M]) {
  Int sum[M] = {}, correction[M] = {};
  for (int run = 0; run < Panel256<A>::kRuns; ++run) {
#ifdef PAIRS_U8_I8
    if constexpr (kInPairs<A>)
      add_run_of_pairs<A, M>(sum, panel, run, x);
    else
#endif
      add_run<A, M>(sum, panel, run, x);
  }
  if (A::kOffset || kHasZero<A>)
    for (int i = 0; i < A::kSubs / 2; ++i)
      for (int m = 0; m < M; ++m)
        (A::kOffset ? correction : sum)[m] +=
            products_of_words(load_int(panel.factors[i]), four_in_all_lanes(x[m]->sums + 2 * i));
  const Vec scale = load(panel.scale), offset_scale = A::kOffset ? load(panel.offset_scale) : Vec{};
  for (int m = 0; m < M; ++m)
    total[m] = add_block_sums<A>(total[m], x[m]->scale, scale, sum[m], offset_scale, correction[m]);
}

// Unpacks block b of LANES rows of weights from row n on. Those from row `next` on come afterwards.
template <class A>
using UnpackPanel = void(Panel256<A>* panel, const LinearPart& part, int64_t n, int64_t b, int64_t next);

// Fetches a part of the LANES rows from row n on into the second cache, in the order of memory, while block b
// of the rows before them is multiplied: memory is much slower where it is read a block of each row at a
// time.
template <class F>
INLINE void prefetch_rows(const LinearPart& part, int64_t n, int64_t b) {
  constexpr int64_t kBytes = LANES * F::kBytes;
  const char* const from = part.weight + n * row_bytes(part.format, part.k) + b * kBytes;
  if (n + LANES <= part.n1)
    for (int64_t i = 0; i < kBytes; i += 64) __builtin_prefetch(from + i, 0, 2);
}

template <class F>
void unpack_rows(PanelOf<F>* panel, const LinearPart& part, int64_t n, int64_t b, int64_t next) {
  static_assert(are_runs_whole<F>());
  const char* w[LANES];
  set_rows(w, part, n);
  prefetch_rows<F>(part, next, b);
  unpack_panel<F>(panel, w, b * F::kBytes);
}

// totals += `blocks` panels with M rows of x
template <class A, int M>
void add_panels(float (*totals)[LANES], const Panel256<A>* panels, int64_t blocks, const char* x,
                int64_t x_bytes) {
  Vec sums[M];
  const Group256* rows[M];
  for (int m = 0; m < M; ++m) {
    sums[m] = load(totals[m]);
    rows[m] = reinterpret_cast<const Group256*>(x + m * x_bytes);
  }
  for (int64_t b = 0; b < blocks; ++b) {
    add_panel<A, M>(sums, panels[b], rows);
    for (int m = 0; m < M; ++m) ++rows[m];
  }
  for (int m = 0; m < M; ++m) store(totals[m], sums[m]);
}
template <class A>
constexpr decltype(&add_panels<A, 1>) add_panels_of[] = {add_panels<A, 1>, add_panels<A, 2>, add_panels<A, 3>,
                                                         add_panels<A, 4>};

#if defined(DOT_U8_I8) && VECTORS == 32
#define WIDE_TILES  // 32 registers hold the sums of six rows of x with two panels

// sum[v][m] += the products of one run of codes of panel v with row m of x, times the scales: each four
// values of x are read once for both panels.
template <class A, int M>
INLINE void add_run_of_two(Int (&sum)[2][M], const Panel256<A>* const (&panels)[2], int run,
                           const Group256* const (&x)[M]) {
  Int dots[2][M] = {};
#pragma GCC unroll 8
  for (int i = 0; i < A::kRun; ++i)
    for (int m = 0; m < M; ++m) {
      const int step = A::step(run, i);
      const Bytes four = (Bytes)four_codes(*x[m], step);
      for (int v = 0; v < 2; ++v) {
        dots[v][m] = dot_in_lanes(dots[v][m], load_bytes(panels[v]->codes[step]), four);
        keep_in_register(dots[v][m]);
      }
    }
  for (int v = 0; v < 2; ++v)
    for (int m = 0; m < M; ++m)
      sum[v][m] = add_scaled<A>(sum[v][m], dots[v][m], load_int(panels[v]->scales[run]));
}

// sum[v][m] += the factors of panel v times the sums of row m of x
template <class A, int M>
INLINE void add_corrections(Int (&sum)[2][M], const Panel256<A>* const (&panels)[2],
                            const Group256* const (&x)[M]) {
  for (int i = 0; i < A::kSubs / 2; ++i)
    for (int m = 0; m < M; ++m) {
      const Int two = four_in_all_lanes(x[m]->sums + 2 * i);
      for (int v = 0; v < 2; ++v) {
        sum[v][m] = (Int)ADD_SUMS_OF_PAIRS(sum[v][m], load_int(panels[v]->factors[i]), two);
        keep_in_register(sum[v][m]);
      }
    }
}

// totals += `blocks` blocks of two panels with M rows of x. The totals stay in memory: the integer sums of a
// block need the registers.
template <class A, int M>
void add_two_panels(float (*const (&totals)[2])[LANES], const Panel256<A>* const (&of)[2], int64_t blocks,
                    const char* x, int64_t x_bytes) {
  const Group256* rows[M];
  for (int m = 0; m < M; ++m) rows[m] = reinterpret_cast<const Group256*>(x + m * x_bytes);
  for (int64_t b = 0; b < blocks; ++b) {
    const Panel256<A>* const panels[2] = {of[0] + b, of[1] + b};
    Int sum[2][M] = {}, correction[2][M] = {};
    if constexpr (!A::kOffset && kHasZero<A>) add_corrections(sum, panels, rows);
#pragma GCC unroll 1
    for (int run = 0; run < Panel256<A>::kRuns; ++run) add_run_of_two<A, M>(sum, panels, run, rows);
    if constexpr (A::kOffset) add_corrections(correction, panels, rows);
    for (int v = 0; v < 2; ++v) {
      const Vec scale = load(panels[v]->scale),
                offset_scale = A::kOffset ? load(panels[v]->offset_scale) : Vec{};
      for (int m = 0; m < M; ++m)
        store(totals[v][m], add_block_sums<A>(load(totals[v][m]), rows[m]->scale, scale, sum[v][m],
                                              offset_scale, correction[v][m]));
    }
    for (int m = 0; m < M; ++m) ++rows[m];
  }
}
template <class A>
constexpr decltype(&add_two_panels<A, 1>) add_two_panels_of[] = {add_two_panels<A, 1>, add_two_panels<A, 2>,
                                                                 add_two_panels<A, 3>, add_two_panels<A, 4>,
                                                                 add_two_panels<A, 5>, add_two_panels<A, 6>};
#endif

// Stores row m of the result for LANES columns from n on. With rounding errors, two totals make one result.
INLINE void store_totals(const LinearPart& part, int64_t m, int64_t n, const float (*totals)[LANES]) {
  float sums[LANES];
  store(sums, part.with_rounding_error ? load(totals[0]) + load(totals[1]) : load(totals[0]));
  store_results(part.out_dtype, part.out, m * part.n + n, smaller(LANES, part.n1 - n), sums,
                part.bias ? part.bias + n : nullptr);
}

// totals += `blocks` blocks of the first `some` panels with `rows` rows of x
template <class A, int kRows, int kPanels, int kBlocks>
INLINE void multiply_with_rows(float (&totals)[kPanels][kRows][LANES],
                               const Panel256<A> (&panels)[kPanels][kBlocks], int64_t some, int64_t blocks,
                               const char* x, int64_t x_bytes, int64_t rows) {
  int64_t v = 0;
#ifdef WIDE_TILES
  constexpr int64_t kTileRows = 6;
  if constexpr (kPanels > 1 && !kInPairs<A>)
    for (; v + 2 <= some; v += 2)
      for (int64_t m = 0; m < rows; m += kTileRows) {
        float (*const to[2])[LANES] = {totals[v] + m, totals[v + 1] + m};
        const Panel256<A>* const two[2] = {panels[v], panels[v + 1]};
        add_two_panels_of<A>[smaller(rows - m, kTileRows) - 1](to, two, blocks, x + m* x_bytes, x_bytes);
      }
#endif
  for (int64_t m = 0; m < rows; m += 4)
    for (int64_t i = v; i < some; ++i)
      add_panels_of<A>[smaller(rows - m, 4) - 1](totals[i] + m, panels[i], blocks, x + m* x_bytes, x_bytes);
}

// At most kRows packed rows of x, from row m0 of the result on. kPanels times LANES rows of weights are
// unpacked at a time, kBlocks blocks of each.
template <class A, int kRows, int kPanels, int kBlocks>
void multiply_panels(const LinearPart& part, int64_t m0, int64_t rows, UnpackPanel<A>* unpack) {
  alignas(64) Panel256<A> panels[kPanels][kBlocks];
  alignas(64) float totals[kPanels][kRows][LANES];
  const int per_row = part.with_rounding_error ? 2 : 1;
  for (int64_t n = part.n0; n < part.n1; n += kPanels * LANES) {
    const int64_t some = smaller(kPanels, (part.n1 - n + LANES - 1) / LANES);
    __builtin_memset(totals, 0, sizeof totals);
    for (int64_t b = 0; b < part.k / 256; b += kBlocks) {
      const int64_t blocks = smaller(kBlocks, part.k / 256 - b);
      for (int64_t v = 0; v < some; ++v)
        for (int64_t i = 0; i < blocks; ++i)
          unpack(&panels[v][i], part, n + v * LANES, b + i, n + (v + kPanels) * LANES);
      const char* const x = part.x + m0 * per_row * part.x_bytes + b * static_cast<int64_t>(sizeof(Group256));
      multiply_with_rows<A, kRows, kPanels, kBlocks>(totals, panels, some, blocks, x, part.x_bytes, rows);
    }
    for (int64_t m = 0; m < rows; m += per_row)
      for (int64_t v = 0; v < some; ++v) store_totals(part, m0 + m / per_row, n + v * LANES, totals[v] + m);
  }
}

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
