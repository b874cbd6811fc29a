// Products of many rows of x with blocks of 256 signed codes of eight bits (iq4_xs), on sets without a dot
// product of bytes (WORD_PANELS). To multiply such bytes takes four instructions for 32 products: three are
// multiplications and moves of signs, which have two ports. So the codes of a panel are multiplied by their
// scales first, once for all rows of x: such a product has up to 14 bits. Words are multiplied and added by
// four instructions too, two of which are multiplications.
//
// The sums of a block are those of panels_256.inl, and are added in the same order: a result has the same
// bits.
#ifndef AIRLLM_WORD_PANELS_256_INL
#define AIRLLM_WORD_PANELS_256_INL
#include "panels_256.inl"

namespace cpu::ISA {
namespace {
namespace stored {

// The scales of a run as words, twice.
template <class A>
INLINE Shorts words_of_scales(Int scales) {
  return (Shorts)(kInPairs<A> ? scales : (scales & 0xffff) | scales << 16);
}

// The even and the odd bytes, as words: less A::kZero, or with signs.
template <class A>
INLINE Shorts even_codes(Bytes codes) {
  if (A::kSigned) return (Shorts)codes << 8 >> 8;
  return ((Shorts)codes & (int16_t)255) - (int16_t)A::kZero;
}
template <class A>
INLINE Shorts odd_codes(Bytes codes) {
  if (A::kSigned) return (Shorts)codes >> 8;
  return (Shorts)((Words)codes >> 8) - (int16_t)A::kZero;
}

#if defined(PAIRS_U8_I8) && !defined(DOT_U8_I8)
#define WORD_PANELS

// Where sums of two steps fit 16 bits, bytes are faster: their sums are multiplied by scales half as often.
template <class A>
constexpr bool kByWords = A::kSigned && A::kChain == 1;

// A block of LANES rows of weights: codes times scales. Each step has four codes of each row, as two pairs of
// words: the even codes, and 64 pairs later the odd ones.
struct WordPanel {
  int32_t pairs[128][LANES];
  float scale[LANES];
};

// A block of a row of x, with its pairs in the order of a panel's.
struct alignas(64) WordsOfRow {
  int32_t pairs[128];
  float scale;
};

template <class A>
INLINE void set_words(WordPanel* to, const Panel256<A>& from) {
  for (int run = 0; run < Panel256<A>::kRuns; ++run) {
    const Shorts scales = words_of_scales<A>(load_int(from.scales[run]));
#pragma GCC unroll 8
    for (int i = 0; i < A::kRun; ++i) {
      const int step = A::step(run, i);
      const Bytes codes = load_bytes(from.codes[step]);
      store_int(to->pairs[step], (Int)(even_codes<A>(codes) * scales));
      store_int(to->pairs[64 + step], (Int)(odd_codes<A>(codes) * scales));
    }
  }
  __builtin_memcpy(to->scale, from.scale, sizeof to->scale);
}

INLINE void set_words(WordsOfRow* to, const Group256& from) {
  for (int step = 0; step < 64; step += LANES) {
    const Shorts x = (Shorts)load_bytes(from.values + 4 * step);
    store_int(to->pairs + step, (Int)(x << 8 >> 8));
    store_int(to->pairs + 64 + step, (Int)(x >> 8));
  }
  to->scale = from.scale;
}

// `some` <= kBlocks blocks of kPanels panels, and of at most kRows rows of x.
template <int kPanels, int kRows, int kBlocks>
struct WordWork {
  WordPanel panels[kPanels][kBlocks];
  WordsOfRow x[kRows][kBlocks];
  float totals[kPanels][kRows][LANES];
  int64_t some;
};

// The totals of V panels from v0 on with M rows of x from m0 on += the products of their blocks
template <class A, int V, int M, class Work>
INLINE void add_word_panels(Work& work, int64_t v0, int64_t m0) {
  for (int64_t b = 0; b < work.some; ++b) {
    const WordPanel* panels[V];
    const WordsOfRow* x[M];
    for (int v = 0; v < V; ++v) panels[v] = &work.panels[v0 + v][b];
    for (int m = 0; m < M; ++m) x[m] = &work.x[m0 + m][b];
    Int sum[V][M] = {};
#pragma GCC unroll 4
    for (int pair = 0; pair < 128; ++pair) {
      Int w[V];
      for (int v = 0; v < V; ++v) w[v] = load_int(panels[v]->pairs[pair]);
      for (int m = 0; m < M; ++m) {
        const Int two = four_in_all_lanes(x[m]->pairs + pair);
        for (int v = 0; v < V; ++v) {
          sum[v][m] += SUMS_OF_PAIRS(w[v], two);
          keep_in_register(sum[v][m]);
        }
      }
    }
    for (int v = 0; v < V; ++v) {
      const Vec scale = load(panels[v]->scale);
      for (int m = 0; m < M; ++m) {
        float* const total = work.totals[v0 + v][m0 + m];
        store(total, add_block_sums<A>(load(total), x[m]->scale, scale, sum[v][m], Vec{}, Int{}));
      }
    }
  }
}

template <class A, int M, class Work>
void add_rows_of_words(Work& work, int64_t panels, int64_t m) {
  int64_t v = 0;
  for (; v + 2 <= panels; v += 2) add_word_panels<A, 2, M>(work, v, m);
  if (v < panels) add_word_panels<A, 1, M>(work, v, m);
}

template <class A, class Work>
void add_words(Work& work, int64_t panels, int64_t rows) {
  int64_t m = 0;
  for (; m + 4 <= rows; m += 4) add_rows_of_words<A, 4>(work, panels, m);
  for (; m < rows; ++m) add_rows_of_words<A, 1>(work, panels, m);
}

// At most kRows packed rows of x, from packed row m0 on.
template <class A, int kPanels, int kRows, int kBlocks>
void multiply_words(const LinearPart& part, int64_t m0, int64_t rows, UnpackPanel<A>* unpack) {
  alignas(64) WordWork<kPanels, kRows, kBlocks> work;
  alignas(64) Panel256<A> unpacked;
  const int64_t per_row = part.with_rounding_error ? 2 : 1;
  for (int64_t n = part.n0; n < part.n1; n += kPanels * LANES) {
    const int64_t panels = smaller(kPanels, (part.n1 - n + LANES - 1) / LANES);
    __builtin_memset(work.totals, 0, sizeof work.totals);
    for (int64_t b = 0; b < part.k / 256; b += kBlocks) {
      work.some = smaller(kBlocks, part.k / 256 - b);
      for (int64_t i = 0; i < work.some; ++i) {
        for (int64_t v = 0; v < panels; ++v) {
          unpack(&unpacked, part, n + v * LANES, b + i, n + (v + kPanels) * LANES);
          set_words(&work.panels[v][i], unpacked);
        }
        for (int64_t m = 0; m < rows; ++m)
          set_words(&work.x[m][i],
                    reinterpret_cast<const Group256*>(part.x + (m0 + m) * part.x_bytes)[b + i]);
      }
      add_words<A>(work, panels, rows);
    }
    for (int64_t m = 0; m < rows; m += per_row)
      for (int64_t v = 0; v < panels; ++v)
        store_totals(part, (m0 + m) / per_row, n + v * LANES, work.totals[v] + m);
  }
}

// The rows of x are taken in parts, and panels of 64 rows of weights: both stay in the second cache.
template <class A>
void many_rows_by_words(const LinearPart& part, UnpackPanel<A>* unpack) {
  constexpr int kMany = 96;
  const int64_t rows = part.packed_rows();
  for (int64_t m = 0; m < rows; m += kMany)
    multiply_words<A, 64 / LANES, kMany, 2>(part, m, smaller(kMany, rows - m), unpack);
}
#endif

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
