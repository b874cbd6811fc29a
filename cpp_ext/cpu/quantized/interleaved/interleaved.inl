// Products of a few rows of x with interleaved weights (interleaved.h): each row of weights is a lane. The
// codes of four values of a row are a word, which is multiplied by four values of x in all lanes. A thread
// reads its part of the weights as one stream, in order.
//
// Blocks of 256 have the arithmetic of gemv_256.inl, and so the same bits: the integer sum of a block, times
// the scales, is added block after block. Those of 32 are added in the same way. For many rows of x, bands
// are unpacked to the panels of panels_256.inl and gemm.inl, which have the bits of weights as stored.
#ifndef AIRLLM_INTERLEAVED_INL
#define AIRLLM_INTERLEAVED_INL
#include "../gemv/several_rows_256.inl"
#include "band_blocks.inl"

namespace cpu::ISA {
namespace {
namespace stored {

// ---- products

// Steps whose sums of pairs fit 16 bits, of kRun.
template <class C, int kRun>
constexpr int steps_in_pairs() {
  constexpr int kFit = 32767 / (2 * 127 * C::kLargest);
  return kFit >= kRun ? kRun : kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
}

#if defined(PAIRS_U8_I8) && !defined(DOT_U8_I8)
#define IN_PAIRS
#endif

#ifdef IN_PAIRS
// sum[m] += the products of kRun steps of codes with row m of x, row after row: the sums of many rows and the
// codes of a few steps are in registers, and the sums of pairs of one row.
template <class F, int kRun, int M>
INLINE void add_run_row_by_row(Int (&sum)[M], const BandBlock<F>& w, int first, const int8_t* const (&x)[M],
                               const int* places, Int scale) {
  constexpr int kFit = steps_in_pairs<CodesOf<F>, kRun>(), kChain = kFit < 4 ? kFit : 4;
#pragma GCC unroll 8
  for (int s = 0; s < kRun; s += kChain) {
    Bytes codes[kChain];
    for (int i = 0; i < kChain; ++i) codes[i] = codes_at(w, first + s + i);
    for (int m = 0; m < M; ++m) {
      Pairs pairs = {};
      for (int i = 0; i < kChain; ++i)
        pairs += PAIRS_U8_I8(codes[i], (Bytes)four_in_all_lanes(x[m] + 4 * places[s + i]));
      sum[m] += SUMS_OF_PAIRS(pairs, scale);
      keep_in_register(sum[m]);
    }
  }
}

// The same of signed codes, of one step. The instruction takes an unsigned and a signed byte. So x is
// inverted where a code is negative, which makes it -x - 1: each such product lacks the magnitude of its
// code, whatever x is. What a run lacks is counted once for all rows. The instruction for signs would compete
// with the products for the same units.
template <class F, int kRun, int M>
INLINE void add_run_of_signed_codes(Int (&sum)[M], const BandBlock<F>& w, int first,
                                    const int8_t* const (&x)[M], const int* places, Int scale) {
  Pairs lacking = {};
#pragma GCC unroll 8
  for (int i = 0; i < kRun; ++i) {
    const Bytes code = codes_at(w, first + i), negative = (Bytes)(code < 0);
    const Bytes magnitude =
        (Bytes)((UnsignedBytes)(code ^ negative) - (UnsignedBytes)negative);  // 128 of -128
    lacking += PAIRS_U8_I8(magnitude, negative);
    for (int m = 0; m < M; ++m) {
      const Bytes four = (Bytes)four_in_all_lanes(x[m] + 4 * places[i]);
      sum[m] += SUMS_OF_PAIRS(PAIRS_U8_I8(magnitude, four ^ negative), scale);
      keep_in_register(sum[m]);
    }
  }
  const Int less = SUMS_OF_PAIRS(lacking, scale);
  for (int m = 0; m < M; ++m) sum[m] -= less;
}
#endif

// sum[v][m] += the products of kRun steps of codes of w[v] with row m of x, times a scale: an integer, or
// with IN_PAIRS twice a word. `x` are the values of a row, and `places` the steps in them.
template <class F, int kRun, int V, int M>
INLINE void add_run_of_codes(Int (&sum)[V][M], const BandBlock<F> (&w)[V], int first,
                             const int8_t* const (&x)[M], const int* places, const Int (&scale)[V]) {
#ifdef IN_PAIRS
  constexpr int kChain = steps_in_pairs<CodesOf<F>, kRun>();
  if constexpr (M > 1 && !CodesOf<F>::kSigned) {
    for (int v = 0; v < V; ++v) add_run_row_by_row<F, kRun>(sum[v], w[v], first, x, places, scale[v]);
    return;
  }
  if constexpr (M > 4 && CodesOf<F>::kSigned && kChain == 1) {
    for (int v = 0; v < V; ++v) add_run_of_signed_codes<F, kRun>(sum[v], w[v], first, x, places, scale[v]);
    return;
  }
#pragma GCC unroll 8
  for (int s = 0; s < kRun; s += kChain) {
    Pairs pairs[V][M] = {};
#pragma GCC unroll 8
    for (int i = s; i < s + kChain; ++i) {
      Bytes codes[V];
      for (int v = 0; v < V; ++v) codes[v] = codes_at(w[v], first + i);
      for (int m = 0; m < M; ++m) {
        const Bytes four = (Bytes)four_in_all_lanes(x[m] + 4 * places[i]);
        for (int v = 0; v < V; ++v) {
          pairs[v][m] += CodesOf<F>::kSigned ? PAIRS_I8_I8(codes[v], four) : PAIRS_U8_I8(codes[v], four);
          keep_in_register(pairs[v][m]);
        }
      }
    }
    for (int v = 0; v < V; ++v)
      for (int m = 0; m < M; ++m) sum[v][m] += SUMS_OF_PAIRS(pairs[v][m], scale[v]);
  }
#else
  Int dots[V][M] = {};
#pragma GCC unroll 8
  for (int i = 0; i < kRun; ++i) {
    Bytes codes[V];
    for (int v = 0; v < V; ++v) codes[v] = codes_at(w[v], first + i);
    for (int m = 0; m < M; ++m) {
      const Bytes four = (Bytes)four_in_all_lanes(x[m] + 4 * places[i]);
      for (int v = 0; v < V; ++v) {
        dots[v][m] = dot_in_lanes(dots[v][m], codes[v], four);
        keep_in_register(dots[v][m]);
      }
    }
  }
  for (int v = 0; v < V; ++v)
    for (int m = 0; m < M; ++m) sum[v][m] += dots[v][m] * scale[v];
#endif
}

template <class F, int V>
INLINE void prefetch_all(const BandBlock<F> (&w)[V], int part, int parts) {
  for (int v = 0; v < V; ++v) w[v].prefetch(part, parts);
}

// An integer scale as add_run_of_codes() takes it.
INLINE Int scale_of_run(Int scale) {
#ifdef IN_PAIRS
  return pair_of_words(scale, scale);
#else
  return scale;
#endif
}

// The part of a block whose code is written out, in sub-blocks, and the words of a row from its first one to
// that of the next part. With eight rows of x and AVX2, a whole block would be 13 to 16 KB of code, and q2_k
// took up to 1.7 times as long. There a part ends where words and places of x are the same again, further on:
// places after LANES words of low bits, words after eight, or after all that have the same high bits.
struct WrittenOut {
  int subs, words;
};
template <class F, int M>
constexpr WrittenOut written_out() {
  if (M <= 4 || VECTORS >= 32) return {256 / F::kUnit, 0};
  constexpr int kFirst = (F::kLow - words_of(F::kFormat).first) / 4,
                kShared = split_words(F::kFormat).low_of_half,
                kWords = kShared     ? kShared
                         : LANES > 8 ? LANES
                                     : 8;
  return {4 * F::kFields * kWords / F::kUnit,
          place_of_word(F::kFormat, kFirst + kWords) - place_of_word(F::kFormat, kFirst)};
}

template <class F, int V, int M>
INLINE void add_block(Vec (&totals)[V][M], const BandBlock<F> (&w)[V], const Group256* const (&x)[M]) {
  constexpr int kRun = F::kUnit / 4, kZero = CodesOf<F>::kZero, kSubs = 256 / F::kUnit;
  const int8_t* values[M];
  for (int m = 0; m < M; ++m) values[m] = x[m]->values;
  decltype(lane_scales(w[0])) scales[V];
  for (int v = 0; v < V; ++v) scales[v] = lane_scales(w[v]);
  Int sum[V][M] = {}, correction[V][M] = {};
  // Without a prefetch, eight rows took 1.2 (q4_k) to 2 times (iq4_xs) as long from memory with AVX2. Its
  // address takes a register that the sums of several rows need.
  constexpr bool kAtOnce = VECTORS < 32 && M > 2;
  if (kAtOnce) prefetch_all(w, 0, 1);
  constexpr WrittenOut kPart = written_out<F, M>();
  BandBlock<F> from[V];
  for (int v = 0; v < V; ++v) from[v] = w[v];
  for (int first = 0; first < kSubs; first += kPart.subs) {
#pragma GCC unroll 16  // makes the number a constant
    for (int sub = 0; sub < kPart.subs; ++sub) {
      if (!kAtOnce) prefetch_all(w, sub, kSubs);
      Int scale[V];
      for (int v = 0; v < V; ++v) scale[v] = scale_of_run(scales[v].scales.at(first + sub));
      add_run_of_codes<F, kRun>(sum, from, sub * kRun, values, steps256<F>.place + sub * kRun, scale);
    }
    for (int v = 0; v < V; ++v) from[v].words += 4 * kBand * kPart.words;
    for (int m = 0; m < M; ++m) values[m] += 4 * kRun * kPart.subs;
  }
  if constexpr (F::kOffset || kZero)
    for (int i = 0; i < 128 / F::kUnit; ++i)
      for (int v = 0; v < V; ++v) {
        Int factors;
        if constexpr (F::kOffset)
          factors = scales[v].offsets.pair(i);
        else
          factors = scales[v].scales.pair(i);
        for (int m = 0; m < M; ++m)
          correction[v][m] += products_of_words(factors, four_in_all_lanes(x[m]->sums + 2 * i));
      }
  for (int v = 0; v < V; ++v) {
    const Vec scale = w[v].half(0), offset_scale = F::kOffset ? w[v].half(1) : Vec{};
    for (int m = 0; m < M; ++m) {
      if (kZero) sum[v][m] -= correction[v][m] * kZero;
      totals[v][m] =
          add_block_sums<F>(totals[v][m], x[m]->scale, scale, sum[v][m], offset_scale, correction[v][m]);
    }
  }
}

// ---- blocks of 32

// A block of x, in order.
struct Rounded32 {
  int8_t values[32];
  float scale, scaled_sum;
  int32_t sum, unused;
};

template <class F>
INLINE Vec scale_of_32(const BandBlock<F>& w) {
  return w.half(0);
}
INLINE Vec scale_of_32(const BandBlock<MXFP4>& w) { return (Vec)MXFP4::bits_of_scales(w.byte()); }

template <class F, int V, int M>
INLINE void add_block(Vec (&totals)[V][M], const BandBlock<F> (&w)[V], const Rounded32* const (&x)[M]) {
  constexpr int kPlaces[] = {0, 1, 2, 3, 4, 5, 6, 7};
  constexpr int kZero = CodesOf<F>::kZero;
  const int8_t* values[M];
  Int sum[V][M], one[V];
  for (int v = 0; v < V; ++v) one[v] = scale_of_run(Int{} + 1);
  for (int m = 0; m < M; ++m) {
    values[m] = x[m]->values;
    for (int v = 0; v < V; ++v) sum[v][m] = kZero ? Int{} + x[m]->sum * -kZero : Int{};
  }
  prefetch_all(w, 0, 1);
  add_run_of_codes<F, 8>(sum, w, 0, values, kPlaces, one);
  for (int v = 0; v < V; ++v) {
    const Vec scale = scale_of_32(w[v]), offset = F::kOffset ? w[v].half(1) : Vec{};
    for (int m = 0; m < M; ++m) {
      totals[v][m] += x[m]->scale * (scale * to_float(sum[v][m]));
      if (F::kOffset) totals[v][m] += offset * x[m]->scaled_sum;
    }
  }
}

// ---- bands

template <class F>
using RowBlock = std::conditional_t<F::kValues == 32, Rounded32, Group256>;

// The band with row n of a weight, from block b on, the first one of a group.
template <class F>
INLINE const char* band_at(const char* weight, int64_t k, int64_t n, int64_t b) {
  return weight + kBand * (n / kBand * row_bytes(F::kFormat, k) + row_bytes(F::kFormat, b * F::kValues));
}

// Rows [lane, lane + LANES) of block b of a band, or of its first `blocks` ones. Only the last group of these
// may have fewer blocks than others.
template <class F>
INLINE BandBlock<F> block_of_band(const char* band, int64_t blocks, int64_t b, int lane, bool ahead) {
  constexpr int64_t kGroupBlocks = group_of(F::kFormat);
  const int64_t first = b / kGroupBlocks * kGroupBlocks, some = smaller(kGroupBlocks, blocks - first);
  return BandBlock<F>::group(band + first * kBand * F::kBytes, some, ahead).of(b - first, lane);
}

// Whether the weights of M rows of x are prefetched.
template <class F, int M>
INLINE bool prefetches() {
  constexpr bool kFastest = M == 1 && (LANES == kBand || F::kFormat == kQ8_0);
  return kFastest ? prefetch.of_fastest : prefetch.of_others;
}

// Vectors of rows of weights that are multiplied together by M rows of x. By one row, both that a band has
// with AVX2: lines of memory are then read in order, and x once.
template <int M>
constexpr int kVectorsOf = M == 1 && 2 * LANES == kBand ? 2 : 1;

// Calls each(blocks, lane, number) for the blocks of a band, for M rows of x.
template <class F, int M, class Each>
INLINE void each_block(const char* band, int64_t blocks, const Each& each) {
  constexpr int V = kVectorsOf<M>;
  const bool ahead = prefetches<F, M>();
  constexpr int64_t kGroupBlocks = group_of(F::kFormat);
  for (int64_t b = 0; b < blocks; b += kGroupBlocks) {
    const int64_t some = smaller(kGroupBlocks, blocks - b);
    const auto group = BandBlock<F>::group(band, some, ahead);
    for (int64_t i = 0; i < some; ++i)
      for (int lane = 0; lane < kBand; lane += LANES * V) {
        BandBlock<F> w[V];
        for (int v = 0; v < V; ++v) w[v] = group.of(i, lane + v * LANES);
        each(w, lane, b + i);
      }
    band += some * kBand * F::kBytes;
  }
}

// totals (M, kBand) += a band with M rows of x. If the vectors have all rows of the band, blocks of 32 are
// added in registers: stores of 64 bytes take as long as two products.
//
// Where its loop begins in a line of code made it take up to 1.3 times as long with AVX2, so that other code
// than its own changed its speed.
template <class F, int M>
__attribute__((aligned(64))) void add_band(float (*totals)[kBand], const char* band, const char* const* x,
                                           int64_t blocks) {
  constexpr int V = kVectorsOf<M>;
  constexpr bool kInRegisters = F::kValues == 32 && LANES * V == kBand;
  const auto load_totals = [&](Vec(&to)[V][M], int lane) {
    for (int v = 0; v < V; ++v)
      for (int m = 0; m < M; ++m) to[v][m] = load(totals[m] + lane + v * LANES);
  };
  const auto store_totals = [&](const Vec(&from)[V][M], int lane) {
    for (int v = 0; v < V; ++v)
      for (int m = 0; m < M; ++m) store(totals[m] + lane + v * LANES, from[v][m]);
  };
  Vec sums[V][M];
  if (kInRegisters) load_totals(sums, 0);
  each_block<F, M>(band, blocks, [&](const BandBlock<F>(&w)[V], int lane, int64_t b) {
    const RowBlock<F>* rows[M];
    for (int m = 0; m < M; ++m) rows[m] = reinterpret_cast<const RowBlock<F>*>(x[m]) + b;
    if (!kInRegisters) load_totals(sums, lane);
    add_block<F>(sums, w, rows);
    if (!kInRegisters) store_totals(sums, lane);
  });
  if (kInRegisters) store_totals(sums, 0);
}

constexpr int kRowsTogether = 8;  // rows of x that are multiplied together, at most

typedef void AddBand(float (*)[kBand], const char*, const char* const*, int64_t);
template <class F>
constexpr AddBand* add_band_of(int64_t rows) {
  return rows == 1   ? add_band<F, 1>
         : rows == 2 ? add_band<F, 2>
         : rows <= 4 ? add_band<F, 4>
                     : add_band<F, kRowsTogether>;
}

// Stores the results of packed rows from m0 on with a band, or those of its columns that the part has.
inline void store_band(const LinearPart& part, int64_t m0, int64_t rows, int64_t n, float (*totals)[kBand]) {
  const int64_t step = part.with_rounding_error ? 2 : 1, first = n > part.n0 ? n : part.n0,
                count = smaller(n + kBand, part.n1) - first;
  for (int64_t m = 0; m < rows; m += step) {
    if (step == 2) map(totals[m], kBand, AddBias{}, totals[m], totals[m + 1]);
    store_results(part.out_dtype, part.out, (m0 + m) / step * part.n + first, count, totals[m] + (first - n),
                  part.bias ? part.bias + first : nullptr);
  }
}

// How many of the rows that are left are multiplied next: five or six as four and the others, since
// add_band() takes eight for them. With 32 registers that was not measured.
INLINE int64_t rows_of_pass(int64_t left) {
  if (VECTORS < 32 && (left == 5 || left == 6)) return 4;
  return smaller(kRowsTogether, left);
}

// Values of k at a time: as many of all rows of x stay in the first cache.
constexpr int64_t kDepthOfBand = 4096;

// totals (rows, kBand) += blocks of a band, from its block b on, with packed rows [m0, m0 + rows) of x; at
// most kRowsTogether.
template <class F>
INLINE void add_rows_to(float (*totals)[kBand], const LinearPart& part, int64_t m0, int64_t rows,
                        const char* band, int64_t b, int64_t blocks) {
  const char* x[kRowsTogether];
  for (int64_t m = 0; m < kRowsTogether; ++m)  // past the last row it is repeated
    x[m] =
        part.x + (m0 + smaller(m, rows - 1)) * part.x_bytes + b * static_cast<int64_t>(sizeof(RowBlock<F>));
  add_band_of<F>(rows)(totals, band, x, blocks);
}

template <class F>
void multiply_band(const LinearPart& part, int64_t m0, int64_t rows, int64_t n) {
  constexpr int64_t kBlocks = kDepthOfBand / F::kValues;
  alignas(64) float totals[kRowsTogether][kBand] = {};
  const int64_t blocks = part.k / F::kValues;
  for (int64_t b = 0; b < blocks; b += kBlocks)
    add_rows_to<F>(totals, part, m0, rows, band_at<F>(part.weight, part.k, n, b), b,
                   smaller(kBlocks, blocks - b));
  store_band(part, m0, rows, n, totals);
}

template <class F>
void multiply_bands(const LinearPart& part) {
  for (int64_t n = part.n0 / kBand * kBand; n < part.n1; n += kBand)
    for (int64_t m = 0, rows; m < part.packed_rows(); m += rows) {
      rows = rows_of_pass(part.packed_rows() - m);
      multiply_band<F>(part, m, rows, n);
    }
}

// ---- panels

template <class F>
INLINE BandBlock<F> block_at(const char* weight, int64_t k, int64_t n, int64_t b) {
  return block_of_band<F>(band_at<F>(weight, k, n, 0), k / F::kValues, b, static_cast<int>(n % kBand), false);
}

template <class F>
using BandArithmetic = ArithmeticBy<F, steps_in_pairs<CodesOf<F>, steps_of_run<F>()>(), CodesOf<F>>;

template <class F>
void unpack_band(Panel256<BandArithmetic<F>>* panel, const LinearPart& part, int64_t n, int64_t b, int64_t) {
  using A = BandArithmetic<F>;
  const BandBlock<F> w = block_at<F>(part.weight, part.k, n, b);
#ifdef PRODUCTS_OF_PAIRS
#pragma GCC unroll 32
  for (int place = 0; place < 64; place += 2) {
    const Int word = (Int)codes_at(w, steps256<F>.at_place[place]);
    const Int next = (Int)codes_at(w, steps256<F>.at_place[place + 1]);
    store_int(panel->codes[place], low_words_in_turn(word, next));
    store_int(panel->codes[place + 1], high_words_in_turn(word, next));
  }
#else
#pragma GCC unroll 64
  for (int step = 0; step < 64; ++step)
    store_int(panel->codes[steps256<F>.place[step]], (Int)codes_at(w, step));
#endif
  const auto scales = lane_scales(w);
#pragma GCC unroll 16
  for (int run = 0; run < 64 / A::kRun; ++run) {
    const Int scale = scales.scales.at(order<F>.sub_block[A::step(run, 0) / 4]);
    store_int(panel->scales[run], kInPairs<A> ? pair_of_words(scale, scale) : scale_of_run<A>(scale));
  }
  if constexpr (F::kOffset || kHasZero<A>)
    for (int i = 0; i < A::kSubs / 2; ++i) {
      if constexpr (F::kOffset)
        store_int(panel->factors[i], scales.offsets.pair(i));
      else
        store_int(panel->factors[i], words_by(scales.scales.pair(i), -A::kZero));
    }
  store(panel->scale, w.half(0));
  if constexpr (F::kOffset) store(panel->offset_scale, w.half(1));
}

// Whether products with interleaved weights are faster, from memory too.
template <class F>
bool is_faster_interleaved() {
#if defined(DOT_U8_I8) || defined(DOTS_AT_ONCE)
  return words_of(F::kFormat).count > 0;
#elif defined(IN_PAIRS)
  // Where nothing is prefetched, blocks of 32 with signs, which take two more instructions for each row of x,
  // q3_k and q6_k are read faster as stored.
  constexpr bool kSlow =
      (F::kValues == 32 && CodesOf<F>::kSigned) || F::kFormat == kQ3_K || F::kFormat == kQ6_K;
  return words_of(F::kFormat).count > 0 && (!kSlow || prefetch.of_others);
#else
  return false;
#endif
}

template <class F>
void multiply_interleaved(const LinearPart& part) {
  if constexpr (F::kValues == 256)
    if (part.packed_rows() > kDecodeRows) return many_rows256<BandArithmetic<F>>(part, unpack_band<F>);
  multiply_bands<F>(part);
}

// ---- x

inline int64_t rounded_bytes(int64_t k) { return k / 32 * static_cast<int64_t>(sizeof(Rounded32)); }

// Rounds kGroup blocks of x.
INLINE void round_group(Rounded32* to, const float* x, Int* worst, float* error) {
  const Rounding by = rounding_of<kGroup>(x, worst);
  float scales[LANES], inverses[LANES];
  store(scales, by.scales);
  store(inverses, by.inverses);
  for (int b = 0; b < kGroup; ++b) {
    const int lane = b * (LANES / kGroup);
    Int sum = Int{};
    for (int i = 0; i < 32; i += LANES) {
      const Vec from = load(x + 32 * b + i), whole = from * inverses[lane] + kRound;  // in the low bits
      const Int number = (Int)whole - (int32_t)0x4b400000;
      *reinterpret_cast<LanesOfBytesInMemory*>(to[b].values + i) = low_bytes(number);
      if (error) store(error + 32 * b + i, from - (whole - kRound) * scales[lane]);
      sum += number;
    }
    to[b].scale = scales[lane];
    to[b].sum = static_cast<int32_t>(across(to_float(sum), Plus{}));
    to[b].scaled_sum = scales[lane] * static_cast<float>(to[b].sum);
  }
}

inline bool round_row(char* to, const float* x, int64_t k, float* error) {
  Rounded32* const rounded = reinterpret_cast<Rounded32*>(to);
  Int worst = Int{};
  int64_t b = 0;
  for (; b + kGroup <= k / 32; b += kGroup)
    round_group(rounded + b, x + 32 * b, &worst, error ? error + 32 * b : nullptr);
  for (; b < k / 32; ++b) {  // one block of a group of zeros
    float values[32 * kGroup] = {}, lost[32 * kGroup];
    Rounded32 group[kGroup];
    __builtin_memcpy(values, x + 32 * b, sizeof(float) * 32);
    round_group(group, values, &worst, error ? lost : nullptr);
    rounded[b] = group[0];
    if (error) __builtin_memcpy(error + 32 * b, lost, sizeof(float) * 32);
  }
  const int32_t largest = reduce_lanes_of<1>(&worst, Larger{})[0];
  return largest == 0 || (largest > 0x21800000 && largest < 0x7f800000);  // 2^-60, infinity
}

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
