// Products of any number of rows of x with interleaved weights (interleaved.h): each row of weights is a
// lane. The codes of four values of a row are a word, which is multiplied by four values of x in all lanes.
//
// Blocks of 256 have the arithmetic of gemv_256.inl, and so the same bits: the integer sum of a block, times
// the scales, is added block after block. Those of 32 are added in the same way.
#ifndef AIRLLM_INTERLEAVED_INL
#define AIRLLM_INTERLEAVED_INL
#include "blocks_codes.inl"
#include "gemv_256.inl"
#include "gemv_32.inl"
#include "interleaved.h"

namespace cpu::ISA {
namespace {
namespace stored {

// ---- a block of a band, LANES of its rows

template <class F>
struct BandBlock {
  static constexpr BlockWords kWords = words_of(F::kFormat);
  static constexpr int kRest = rest_bytes(F::kFormat);
  const char *words, *rest;

  // Rows [lane, lane + LANES) of block b.
  INLINE BandBlock of(int64_t b, int lane) const {
    return {words + b * kWords.count * 4 * kBand + 4 * lane,
            rest + b * kRest * kBand + rest_width(F::kFormat) * lane};
  }
  // The word at this byte of the block.
  INLINE Int word(int byte) const { return load_int(words + (byte - kWords.first) * kBand); }
  INLINE Vec half(int number) const {
    return load(reinterpret_cast<const Float16*>(rest + 2 * kBand * number));
  }
  INLINE Int half_bits(int number) const {
    return __builtin_convertvector(
        *reinterpret_cast<const Bits16InMemory*>(rest + 2 * kBand * number), Int);
  }
  INLINE Int byte() const {
    return __builtin_convertvector(*reinterpret_cast<const LanesOfBytesInMemory*>(rest), Int) & 255;
  }
};

// ---- the scales of sub-blocks

// Two integers as the words of a lane.
INLINE Int pair_of_words(Int low, Int high) { return (low & 0xffff) | high << 16; }

// kCount bytes of each row, four in each vector.
template <int kCount, bool kSignedBytes>
struct BytesOfLanes {
  Int four[kCount / 4];
  INLINE Int at(int j) const {
    const Int v = four[j / 4];
    if (kSignedBytes) return v << (24 - j % 4 * 8) >> 24;
    return j % 4 == 3 ? (Int)((Bits)v >> 24) : (Int)((Bits)v >> j % 4 * 8) & 255;
  }
  // Bytes 2 i and 2 i + 1, as words.
  INLINE Int pair(int i) const {
    const Bits v = i % 2 ? (Bits)four[i / 2] >> 16 : (Bits)four[i / 2];
    const Bits words = (v & 0xff) | (v << 8 & 0xff0000);
    return kSignedBytes ? (Int)((Shorts)((Words16)words << 8) >> 8) : (Int)words;
  }

 private:
  typedef uint16_t Words16 __attribute__((vector_size(4 * LANES)));
};

template <int kUnit>
struct LaneScales {
  static constexpr int kSubs = 256 / kUnit;
  BytesOfLanes<kSubs, false> scales, offsets;
};
template <int kUnit>
struct SignedLaneScales {
  BytesOfLanes<256 / kUnit, true> scales;
};

INLINE Int nibbles_of(Int v, int shift) { return (Int)((Bits)v >> shift) & 0x0f0f0f0f; }
INLINE Int two_bits_of(Int v, int left) {  // of each byte, as its bits 4 and 5
  return (left < 0 ? (Int)((Bits)v >> -left) : v << left) & 0x30303030;
}

template <class F>
INLINE LaneScales<32> six_bit_scales(const BandBlock<F>& w) {
  const Int a = w.word(4), b = w.word(8), rest = w.word(12);
  return {{{a & 0x3f3f3f3f, nibbles_of(rest, 0) | two_bits_of(a, -2)}},
          {{b & 0x3f3f3f3f, nibbles_of(rest, 4) | two_bits_of(b, -2)}}};
}
INLINE auto lane_scales(const BandBlock<Q4_K>& w) { return six_bit_scales(w); }
INLINE auto lane_scales(const BandBlock<Q5_K>& w) { return six_bit_scales(w); }
INLINE LaneScales<16> lane_scales(const BandBlock<Q2_K>& w) {
  LaneScales<16> all;
  for (int i = 0; i < 4; ++i) {
    all.scales.four[i] = nibbles_of(w.word(4 * i), 0);
    all.offsets.four[i] = nibbles_of(w.word(4 * i), 4);
  }
  return all;
}
INLINE SignedLaneScales<16> lane_scales(const BandBlock<Q3_K>& w) {
  const Int a = w.word(96), b = w.word(100), rest = w.word(104);
  const auto less_32 = [](Int v) { return (Int)((Bytes)v - (int8_t)32); };
  return {{{less_32(nibbles_of(a, 0) | two_bits_of(rest, 4)), less_32(nibbles_of(b, 0) | two_bits_of(rest, 2)),
            less_32(nibbles_of(a, 4) | two_bits_of(rest, 0)),
            less_32(nibbles_of(b, 4) | two_bits_of(rest, -2))}}};
}
INLINE SignedLaneScales<16> lane_scales(const BandBlock<Q6_K>& w) {
  return {{{w.word(192), w.word(196), w.word(200), w.word(204)}}};
}
INLINE SignedLaneScales<32> lane_scales(const BandBlock<IQ4_XS>& w) {
  const Int low = w.word(4), high = w.half_bits(1);
  SignedLaneScales<32> all;
  for (int i = 0; i < 2; ++i) {  // four nibbles, and four times two bits, as bytes
    Int n = (Int)((Bits)low >> 16 * i) & 0xffff, t = high >> 8 * i & 0xff;
    n = (n | n << 8) & 0x00ff00ff;
    n = (n | n << 4) & 0x0f0f0f0f;
    t = (t | t << 12) & 0x000f000f;
    t = (t | t << 6) & 0x03030303;
    all.scales.four[i] = (Int)((Bytes)(n | t << 4) - (int8_t)32);
  }
  return all;
}
struct NoLaneScales {
  struct {
    INLINE Int at(int) const { return Int{} + 1; }
    INLINE Int pair(int) const { return Int{} + 0x10001; }
  } scales;
};
INLINE NoLaneScales lane_scales(const BandBlock<TQ2_0>&) { return {}; }

// ---- codes

// How the codes of a format are multiplied. kSigned: with signs, else less kZero. On sets whose dot product
// takes no signs, signed codes have kSignedZero added.
template <bool kSignedOf, int kZeroOf, int kLargestOf>
struct Codes256 {
  static constexpr bool kSigned = kSignedOf && !kSignedZero;
  static constexpr int kZero = kSignedOf ? kSignedZero : kZeroOf, kLargest = kLargestOf;
};
template <class F>
struct CodesOf : Codes256<F::kSigned, F::kZero, F::kLargest> {};
template <>
struct CodesOf<TQ2_0> : Codes256<false, 1, 3> {};  // the bits, which are one more than the codes
template <>
struct CodesOf<MXFP4> : Codes256<true, 0, 12> {};

// Field f of the word with the low bits at byte 4 * word.
template <class F>
INLINE Bytes codes_of_word(const BandBlock<F>& w, int word, int f) {
  const int at = 4 * word;
  const Bytes low = field((Bytes)w.word(F::kLow + at), F::kLowBits * f, (1 << F::kLowBits) - 1);
  if constexpr (!F::kHighBits) {
    return low;
  } else {
    constexpr int kMask = ((1 << F::kHighBits) - 1) << F::kLowBits;
    const int bit = F::high_bit(at, f);
    const Bits high = (Bits)w.word(F::kHigh + F::high_at(at) + at % 32);
    const Bits moved = bit > F::kLowBits ? high >> (bit - F::kLowBits) : high << (F::kLowBits - bit);
    return low | ((Bytes)moved & (int8_t)kMask);
  }
}
INLINE Bytes codes_of_word(const BandBlock<IQ4_XS>& w, int word, int f) {
  return from_table(IQ4_NL::levels() ^ (int8_t)kSignedZero, field((Bytes)w.word(IQ4_XS::kLow + 4 * word), 4 * f, 15));
}
INLINE Bytes codes_of_word(const BandBlock<TQ2_0>& w, int word, int f) {
  return field((Bytes)w.word(4 * word), 2 * f, 3);
}

// Steps of four values in the order of sub-blocks: the word and the field with their codes, and their place
// in x as Group256 has it.
template <class F>
struct Steps256 {
  int word[64] = {}, field[64] = {}, place[64] = {};
  constexpr Steps256() {
    int step = 0;
    for (int sub = 0; sub < 256 / F::kUnit; ++sub)
      for (int w = 0; w < 64 / F::kFields; ++w)
        for (int f = 0; f < F::kFields; ++f)
          if (F::unit(4 * w, f) * 16 / F::kUnit == sub) {
            word[step] = w;
            field[step] = f;
            place[step++] = ((w / LANES) * F::kFields + f) * LANES + w % LANES;
          }
  }
};
template <class F>
constexpr Steps256<F> steps256;

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

// sum[m] += the products of a run of codes with row m of x, times a scale: an integer, or with IN_PAIRS twice
// a word. `x` are the values of a row, and `places` the steps of the run in them.
template <class C, int kRun, int M>
INLINE void add_run_of_codes(Int (&sum)[M], const Bytes (&codes)[kRun], const int8_t* const (&x)[M],
                             const int* places, Int scale) {
#ifdef IN_PAIRS
  constexpr int kChain = steps_in_pairs<C, kRun>();
#pragma GCC unroll 8
  for (int s = 0; s < kRun; s += kChain) {
    Pairs pairs[M] = {};
#pragma GCC unroll 8
    for (int i = s; i < s + kChain; ++i)
      for (int m = 0; m < M; ++m) {
        const Bytes four = (Bytes)four_in_all_lanes(x[m] + 4 * places[i]);
        pairs[m] += C::kSigned ? PAIRS_I8_I8(codes[i], four) : PAIRS_U8_I8(codes[i], four);
        keep_in_register(pairs[m]);
      }
    for (int m = 0; m < M; ++m) sum[m] += SUMS_OF_PAIRS(pairs[m], scale);
  }
#else
  Int dots[M] = {};
#pragma GCC unroll 8
  for (int i = 0; i < kRun; ++i)
    for (int m = 0; m < M; ++m) {
      dots[m] = dot_in_lanes(dots[m], codes[i], (Bytes)four_in_all_lanes(x[m] + 4 * places[i]));
      keep_in_register(dots[m]);
    }
  for (int m = 0; m < M; ++m) sum[m] += dots[m] * scale;
#endif
}

// An integer scale as add_run_of_codes() takes it.
INLINE Int scale_of_run(Int scale) {
#ifdef IN_PAIRS
  return pair_of_words(scale, scale);
#else
  return scale;
#endif
}

template <class F, int kSub, int M, int... I>
INLINE void add_sub_block(Int (&sum)[M], const BandBlock<F>& w, const int8_t* const (&x)[M], Int scale,
                          std::integer_sequence<int, I...>) {
  constexpr int kRun = F::kUnit / 4, kFirst = kSub * kRun;
  constexpr const Steps256<F>& kSteps = steps256<F>;
  const Bytes codes[kRun] = {codes_of_word(w, kSteps.word[kFirst + I], kSteps.field[kFirst + I])...};
  add_run_of_codes<CodesOf<F>, kRun, M>(sum, codes, x, kSteps.place + kFirst, scale_of_run(scale));
}

template <class F, int M, int... kSub>
INLINE void add_block(float (*totals)[kBand], const BandBlock<F>& w, const Group256* const (&x)[M],
                      std::integer_sequence<int, kSub...>) {
  const auto scales = lane_scales(w);
  const int8_t* values[M];
  for (int m = 0; m < M; ++m) values[m] = x[m]->values;
  Int sum[M] = {}, correction[M] = {};
  (add_sub_block<F, kSub, M>(sum, w, values, scales.scales.at(kSub),
                             std::make_integer_sequence<int, F::kUnit / 4>{}),
   ...);
  constexpr int kZero = CodesOf<F>::kZero;
  if constexpr (F::kOffset || kZero)
    for (int i = 0; i < 128 / F::kUnit; ++i) {
      Int factors;
      if constexpr (F::kOffset)
        factors = scales.offsets.pair(i);
      else
        factors = scales.scales.pair(i);
      for (int m = 0; m < M; ++m)
        correction[m] += products_of_words(factors, four_in_all_lanes(x[m]->sums + 2 * i));
    }
  const Vec scale = w.half(0), offset_scale = F::kOffset ? w.half(1) : Vec{};
  for (int m = 0; m < M; ++m) {
    if (kZero) sum[m] -= correction[m] * kZero;
    store(totals[m],
          add_block_sums<F>(load(totals[m]), x[m]->scale, scale, sum[m], offset_scale, correction[m]));
  }
}

// ---- blocks of 32

// A block of x, in order.
struct Rounded32 {
  int8_t values[32];
  float scale, scaled_sum;
  int32_t sum, unused;
};

// Bits 4 step to 4 step + 3 of each lane, as bit 4 of its bytes.
INLINE Bytes fifth_bits_of(Int bits, int step) {
  const Bits four = (Bits)bits >> 4 * step & 15;
  return (Bytes)((four * 0x00204081u & 0x01010101u) << 4);
}

template <class F>
INLINE Bytes codes_of_step(const BandBlock<F>& w, int step) {  // of values 4 step to 4 step + 3
  if constexpr (F::kSigned) {
    if constexpr (BandBlock<F>::kWords.count == 8) return (Bytes)w.word(F::kLow + 4 * step) ^ (int8_t)kSignedZero;
    else return from_table(F::levels() ^ (int8_t)kSignedZero, field((Bytes)w.word(F::kLow + step % 4 * 4), step / 4 * 4, 15));
  } else {
    const Bytes low = field((Bytes)w.word(F::kLow + step % 4 * 4), step / 4 * 4, 15);
    if constexpr (!F::kFifth) return low;
    else return low | fifth_bits_of(w.word(F::kFifth), step);
  }
}
template <class F>
INLINE Vec scale_of_32(const BandBlock<F>& w) { return w.half(0); }
INLINE Vec scale_of_32(const BandBlock<MXFP4>& w) { return (Vec)MXFP4::bits_of_scales(w.byte()); }

template <class F, int M, int... I>
INLINE void add_block(float (*totals)[kBand], const BandBlock<F>& w, const Rounded32* const (&x)[M],
                      std::integer_sequence<int, I...>) {
  constexpr int kPlaces[] = {I...};
  constexpr int kZero = CodesOf<F>::kZero;
  const Bytes codes[8] = {codes_of_step(w, I)...};
  const int8_t* values[M];
  Int sum[M];
  for (int m = 0; m < M; ++m) {
    values[m] = x[m]->values;
    sum[m] = kZero ? Int{} + x[m]->sum * -kZero : Int{};
  }
  add_run_of_codes<CodesOf<F>, 8, M>(sum, codes, values, kPlaces, scale_of_run(Int{} + 1));
  const Vec scale = scale_of_32(w), offset = F::kOffset ? w.half(1) : Vec{};
  for (int m = 0; m < M; ++m) {
    Vec total = load(totals[m]) + x[m]->scale * (scale * to_float(sum[m]));
    if (F::kOffset) total += offset * x[m]->scaled_sum;
    store(totals[m], total);
  }
}

// ---- bands

template <class F>
using RowBlock = std::conditional_t<F::kValues == 32, Rounded32, Group256>;
template <class F>
using Parts = std::make_integer_sequence<int, F::kValues == 32 ? 8 : 256 / F::kUnit>;

// Memory is much slower where a thread reads one stream as fast as it comes, so that lines are fetched ahead,
// also past the end of a band: the next one begins there.
template <class F>
INLINE void prefetch(const BandBlock<F>& band, int64_t b) {
  constexpr int64_t kAhead = AHEAD, kBytes = BandBlock<F>::kWords.count * 4 * kBand;
  const char* const from = band.words + b * kBytes + kAhead;
#pragma GCC unroll 64
  for (int64_t i = 0; i < kBytes; i += 64) __builtin_prefetch(from + i, 0, LOC);
}

// totals (M, kBand) += `blocks` blocks of a band with M rows of x
template <class F, int M>
void add_band(float (*totals)[kBand], BandBlock<F> band, const char* const* x, int64_t blocks) {
  const RowBlock<F>* rows[M];
  for (int m = 0; m < M; ++m) rows[m] = reinterpret_cast<const RowBlock<F>*>(x[m]);
  for (int64_t b = 0; b < blocks; ++b) {
    if (AHEAD) prefetch<F>(band, b);
    for (int lane = 0; lane < kBand; lane += LANES)
      add_block<F, M>(reinterpret_cast<float(*)[kBand]>(totals[0] + lane), band.of(b, lane), rows, Parts<F>{});
    for (int m = 0; m < M; ++m) ++rows[m];
  }
}

constexpr int kMostRows = VECTORS == 32 ? 8 : 4;  // of x that are multiplied together
template <class F>
using AddBand = void(float (*)[kBand], BandBlock<F>, const char* const*, int64_t);
template <class F>
constexpr AddBand<F>* add_band_of(int64_t rows) {
  return rows <= 1 ? add_band<F, 1> : rows <= 2 ? add_band<F, 2> : rows <= 4 ? add_band<F, 4>
                                                                             : add_band<F, kMostRows>;
}

// Some rows of x with some columns of the result: x stays in the second cache while bands are read.
template <class F>
struct BandTile {
  // Values of k at a time: a piece of a band stays in the first cache, one of all rows of x in the second.
  static constexpr int64_t kDepth = 4096, kBands = 4, kRows = 96;
  static constexpr int64_t kBlocks = kDepth / F::kValues;
  alignas(64) float totals[kBands][kRows + kMostRows][kBand];

  const LinearPart& part;
  int64_t m0, rows;

  // The band with this column, from block b on.
  INLINE BandBlock<F> band(int64_t n, int64_t b) const {
    const int64_t blocks = part.k / F::kValues;
    const char* const words = part.weight + n / kBand * kBand * row_bytes(part.format, part.k);
    const BandBlock<F> whole{words, words + blocks * BandBlock<F>::kWords.count * 4 * kBand};
    return whole.of(b, 0);
  }

  // Bands from the one with column n on.
  void multiply(int64_t n, int64_t bands) {
    for (int64_t v = 0; v < bands; ++v) __builtin_memset(totals[v], 0, sizeof(float) * kBand * (rows + kMostRows));
    const int64_t blocks = part.k / F::kValues;
    for (int64_t b = 0; b < blocks; b += kBlocks)
      for (int64_t m = 0; m < rows; m += kMostRows) {
        const char* x[kMostRows];
        for (int i = 0; i < kMostRows; ++i)  // past the last row it is repeated
          x[i] = part.x + (m0 + smaller(m + i, rows - 1)) * part.x_bytes +
                 b * static_cast<int64_t>(sizeof(RowBlock<F>));
        for (int64_t v = 0; v < bands; ++v)
          add_band_of<F>(rows - m)(totals[v] + m, band(n + v * kBand, b), x, smaller(kBlocks, blocks - b));
      }
  }

  // Stores the results of a band, or those of them that the part has.
  void store(int64_t n, float (*of)[kBand]) const {
    const int64_t step = part.with_rounding_error ? 2 : 1, first = n > part.n0 ? n : part.n0,
                  count = smaller(n + kBand, part.n1) - first;
    for (int64_t m = 0; m < rows; m += step) {
      if (step == 2) map(of[m], kBand, AddBias{}, of[m], of[m + 1]);
      store_results(part.out_dtype, part.out, (m0 + m) / step * part.n + first, count, of[m] + (first - n),
                    part.bias ? part.bias + first : nullptr);
    }
  }
};

#ifndef STREAMS
#define STREAMS 4
#endif
// Few rows of x with bands of kStreams parts of the weights, block by block in turns.
template <class F>
void multiply_streams(const LinearPart& part) {
  BandTile<F> tile{{}, part, 0, part.packed_rows()};
  const int64_t first = part.n0 / kBand, bands = (part.n1 + kBand - 1) / kBand - first,
                each = (bands + STREAMS - 1) / STREAMS, blocks = part.k / F::kValues;
  constexpr int64_t kSome = SOME;
  for (int64_t i = 0; i < each; ++i) {
    const int64_t some = smaller(STREAMS, (bands - i + each - 1) / each);
    for (int64_t v = 0; v < some; ++v) __builtin_memset(tile.totals[v], 0, sizeof(float) * kBand * kMostRows);
    for (int64_t b = 0; b < blocks; b += kSome) {
      const char* x[kMostRows];
      for (int j = 0; j < kMostRows; ++j)
        x[j] = part.x + smaller(j, tile.rows - 1) * part.x_bytes + b * static_cast<int64_t>(sizeof(RowBlock<F>));
      for (int64_t v = 0; v < some; ++v)
        add_band_of<F>(tile.rows)(tile.totals[v], tile.band((first + i + v * each) * kBand, b), x, smaller(kSome, blocks - b));
    }
    for (int64_t v = 0; v < some; ++v) tile.store((first + i + v * each) * kBand, tile.totals[v]);
  }
}

template <class F>
void multiply_interleaved(const LinearPart& part) {
#ifdef SOME
  if (part.packed_rows() <= kMostRows) return multiply_streams<F>(part);
#endif
  using Tile = BandTile<F>;
  const int64_t most = part.packed_rows() <= kMostRows ? 1 : Tile::kBands;
  for (int64_t m = 0; m < part.packed_rows(); m += Tile::kRows) {
    Tile tile{{}, part, m, smaller(Tile::kRows, part.packed_rows() - m)};
    for (int64_t n = part.n0 / kBand * kBand; n < part.n1; n += most * kBand) {
      const int64_t bands = smaller(most, (part.n1 - n + kBand - 1) / kBand);
      tile.multiply(n, bands);
      for (int64_t v = 0; v < bands; ++v) tile.store(n + v * kBand, tile.totals[v]);
    }
  }
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
