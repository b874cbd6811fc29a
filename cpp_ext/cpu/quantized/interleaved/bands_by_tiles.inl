// Products of several rows of x, at most 16, with bands of weights by tiles (TILES). The codes of a sub-block
// of a band, four of each row in a word, are a tile: their products with all rows of x are one instruction. A
// scale multiplies its sums. Weights as stored, in blocks of 256, are interleaved as they are read.
//
// The sums of a block are those of interleaved.inl, and are added in the same order: a result has the same
// bits. Codes have signs here, less their zero, for a product of signed bytes takes no longer.
#ifndef AIRLLM_BANDS_BY_TILES_INL
#define AIRLLM_BANDS_BY_TILES_INL
#include "../../simd/tiles.inl"
#include "stored_bands.inl"

namespace cpu::ISA {
namespace {
namespace stored {

#ifdef TILES
static_assert(kTileRows == kBand && LANES == kBand);

// The sub-block of the step that is at a place of x.
template <class F>
constexpr int sub_block_at(int place) {
  return steps256<F>.at_place[place] / (F::kUnit / 4);
}

// Steps of four values that a tile multiplies: of a block of 32, or of a sub-block, if x has it in one piece;
// else of half of one.
template <class F>
constexpr int steps_of_tile() {
  if constexpr (F::kValues == 32) {
    return 8;
  } else {
    constexpr int kSteps = F::kUnit / 4;
    for (int place = 0; place < 64; ++place)
      if (sub_block_at<F>(place) != sub_block_at<F>(place / kSteps * kSteps)) return 4;
    return kSteps;
  }
}

// The rows of x, `stride` bytes apart. A row past the last one is the last one.
template <int M>
struct RowsOfX {
  const char* row[M];
  int64_t stride;

  RowsOfX(const char* first, int64_t stride, int64_t rows) : stride(stride) {
    for (int m = 0; m < M; ++m) row[m] = first + smaller(m, rows - 1) * stride;
  }
  template <class Block>
  RowsOfX from(int64_t b) const {
    RowsOfX rest = *this;
    for (const char*& each : rest.row) each += b * static_cast<int64_t>(sizeof(Block));
    return rest;
  }
  template <class Block>
  INLINE const Block& at(int m, int64_t b) const {
    return reinterpret_cast<const Block*>(row[m])[b];
  }
};

template <class F>
INLINE Int signed_codes_at(const BandBlock<F>& w, int step) {
  return (Int)((UnsignedBytes)codes_at(w, step) - (uint8_t)CodesOf<F>::kZero);
}

// A band of an interleaved weight, and its block b.
template <class F>
struct InterleavedBand {
  const char* first;
  int64_t blocks;
  bool ahead;

  INLINE void prepare(int64_t) {}
  // Prefetches a part of what is multiplied after block b.
  INLINE void prefetch(int64_t b, int part, int parts) const { block(b).prefetch(part, parts); }
  INLINE BandBlock<F> block(int64_t b) const { return block_of_band<F>(first, blocks, b, 0, ahead); }
};

// The same of 16 rows as stored, whose blocks are interleaved as they are needed. The last three are kept.
template <class F>
struct StoredBand {
  const char* first;
  int64_t row_bytes;
  alignas(64) char interleaved[4][kBand * F::kBytes];

  // Prefetches the same block of the next band: so few bytes of each row lie together that the hardware does
  // not.
  INLINE void prefetch(int64_t b, int part, int parts) const {
    const char* const next = first + b * F::kBytes + kBand * row_bytes;
    for (int r = part * kBand / parts; r < (part + 1) * kBand / parts; ++r)
      for (int at = 0; at < F::kBytes; at += 64) __builtin_prefetch(next + r * row_bytes + at, 0, 2);
  }
  void prepare(int64_t b) {
    char* const to = interleaved[b % 4];
    interleave_block<F>(to, to + 4 * kBand * words_of(F::kFormat).count, first + b * F::kBytes, row_bytes);
  }
  INLINE BandBlock<F> block(int64_t b) const {
    return BandBlock<F>::group(interleaved[b % 4], 1, false).of(0, 0);
  }
};

// to = the products of a tile of x with a tile of codes. Four tiles of sums are in turn.
#define MULTIPLY_TILE(sums, of_x, of_codes) \
  if (number % 4 == sums) {                 \
    ZERO_TILE(sums);                        \
    LOAD_TILE(of_x, x, stride);             \
    LOAD_TILE(of_codes, codes, 4 * LANES);  \
    ADD_TILES_SIGNED(sums, of_x, of_codes); \
    STORE_TILE(sums, to, 4 * LANES);        \
  }
INLINE void multiply_tile(int number, int32_t (*to)[LANES], const int8_t* x, int64_t stride,
                          const void* codes) {
  MULTIPLY_TILE(0, 4, 6)
  MULTIPLY_TILE(1, 5, 7)
  MULTIPLY_TILE(2, 4, 6)
  MULTIPLY_TILE(3, 5, 7)
}
#undef MULTIPLY_TILE

// What is written for tiles and by them is read much later, for neither is passed on before it is in the
// cache: the codes of a block are unpacked while the block before it is multiplied, and the sums of a tile
// are added when kBehind others have been multiplied.
constexpr int kBehind = 4;
struct BandTiles {
  alignas(64) int32_t codes[2][64][LANES];
  alignas(64) int32_t sums[2 * kBehind][kTileRows][LANES];
  alignas(64) int32_t unfinished[kTileRows][LANES];  // the sum of a block of 256 without its last tiles
};

// ---- blocks of 256

template <class F, int M, class Band>
struct BandOfTiles256 {
  static constexpr int kSteps = steps_of_tile<F>(), kTiles = 64 / kSteps;
  Band& band;
  int64_t blocks;
  const RowsOfX<M>& x;
  float (*totals)[kBand];
  BandTiles& work;

  INLINE void unpack(const BandBlock<F>& w, int32_t (*codes)[LANES], int first, int count) {
#pragma GCC unroll 64
    for (int step = first; step < first + count; ++step)
      store_int(codes[steps256<F>.place[step]], signed_codes_at(w, step));
  }

  template <class Scales>
  INLINE void add(Int (&sum)[M], int tile, const Scales& scales) {
    const Int scale = scales.at(sub_block_at<F>(tile * kSteps));
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) sum[m] += load_int(work.sums[tile % (2 * kBehind)][m]) * scale;
  }

  template <class Scales>
  INLINE void finish(Int (&sum)[M], const BandBlock<F>& w, int64_t b, const Scales& scales) {
    const Vec scale = w.half(0), offset_scale = F::kOffset ? w.half(1) : Vec{};
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const Group256& row = x.template at<Group256>(m, b);
      Int correction = {};
      if constexpr (F::kOffset)
        for (int i = 0; i < 128 / F::kUnit; ++i)
          correction =
              (Int)ADD_SUMS_OF_PAIRS(correction, scales.offsets.pair(i), four_in_all_lanes(row.sums + 2 * i));
      store(totals[m],
            add_block_sums<F>(load(totals[m]), row.scale, scale, sum[m], offset_scale, correction));
      sum[m] = Int{};
    }
  }

  // Multiplies block b, and unpacks the next one.
  void multiply(int64_t b) {
    const int64_t following = smaller(b + 1, blocks - 1);
    if (following > b) band.prepare(following);
    const BandBlock<F> now = band.block(b), next = band.block(following), last = band.block(b ? b - 1 : 0);
    const auto scales = lane_scales(now), last_scales = lane_scales(last);
    const int8_t* const values = x.template at<Group256>(0, b).values;
    Int sum[M];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) sum[m] = load_int(work.unfinished[m]);
#pragma GCC unroll 16  // makes the numbers constants
    for (int tile = 0; tile < kTiles; ++tile) {
      multiply_tile(tile, work.sums[tile % (2 * kBehind)], values + 4 * kSteps * tile, x.stride,
                    work.codes[b % 2][tile * kSteps]);
      band.prefetch(b, tile, kTiles);
      unpack(next, work.codes[1 - b % 2], tile * kSteps, kSteps);
      if (tile >= kBehind)
        add(sum, tile - kBehind, scales.scales);
      else if (b)
        add(sum, kTiles - kBehind + tile, last_scales.scales);
      if (tile == kBehind - 1 && b) finish(sum, last, b - 1, last_scales);
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) store_int(work.unfinished[m], sum[m]);
  }

  void multiply_all() {
    band.prepare(0);
    unpack(band.block(0), work.codes[0], 0, 64);
    __builtin_memset(work.unfinished, 0, sizeof work.unfinished);
    for (int64_t b = 0; b < blocks; ++b) multiply(b);
    const BandBlock<F> last = band.block(blocks - 1);
    const auto scales = lane_scales(last);
    Int sum[M];
    for (int m = 0; m < M; ++m) sum[m] = load_int(work.unfinished[m]);
#pragma GCC unroll 4
    for (int tile = kTiles - kBehind; tile < kTiles; ++tile) add(sum, tile, scales.scales);
    finish(sum, last, blocks - 1, scales);
  }
};

// ---- blocks of 32

template <class F, int M>
struct BandOfTiles32 {
  static constexpr bool kAsStored = F::kFormat == kQ8_0;  // a block's words are its tile
  InterleavedBand<F>& band;
  int64_t blocks;
  const RowsOfX<M>& x;
  float (*to)[kBand];
  BandTiles& work;

  INLINE int32_t (*codes(int64_t b)) [LANES] { return work.codes[0] + b % 8 * 8; }

  INLINE void unpack(int64_t b) {
    const BandBlock<F> w = band.block(b);
    w.prefetch(0, 1);
    if (!kAsStored)
      for (int step = 0; step < 8; ++step) store_int(codes(b)[step], signed_codes_at(w, step));
  }

  INLINE void add(Vec (&totals)[M], int64_t b) {
    const BandBlock<F> w = band.block(b);
    const Vec scale = scale_of_32(w), offset = F::kOffset ? w.half(1) : Vec{};
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const Rounded32& row = x.template at<Rounded32>(m, b);
      totals[m] += row.scale * (scale * to_float(load_int(work.sums[b % 8][m])));
      if (F::kOffset) totals[m] += offset * row.scaled_sum;
    }
  }

  void multiply_all() {
    constexpr int kEarly = 3, kLate = 2;  // blocks
    Vec totals[M];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) totals[m] = load(to[m]);
    for (int64_t b = 0; b < smaller(kEarly, blocks); ++b) unpack(b);
    for (int64_t from = 0; from < blocks + kLate; from += 4)
#pragma GCC unroll 4  // makes the numbers constants
      for (int i = 0; i < 4; ++i) {
        const int64_t b = from + i;
        if (b < blocks)
          multiply_tile(i, work.sums[b % 8], x.template at<Rounded32>(0, b).values, x.stride,
                        kAsStored ? static_cast<const void*>(band.block(b).words) : codes(b));
        if (b + kEarly < blocks) unpack(b + kEarly);
        if (b >= kLate && b < blocks + kLate) add(totals, b - kLate);
      }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) store(to[m], totals[m]);
  }
};

// ---- bands

// Values of k at a time: as many of 16 rows of x stay in the first cache for kTogether bands.
constexpr int64_t kDepthOfTiles = 1024, kTogether = 8;

// The band with row n of a weight, from block b on.
template <class F>
InterleavedBand<F> band_of_tiles(const LinearPart& part, int64_t n, int64_t b, int64_t blocks) {
  return {band_at<F>(part.weight, part.k, n, b), blocks, prefetches<F, 2>()};
}

// totals (kTogether, M, kBand) = bands from row n of the weight on
template <class F, int M>
void multiply_together(float (*totals)[M][kBand], const LinearPart& part, int64_t n, const RowsOfX<M>& x) {
  constexpr int64_t kBlocks = kDepthOfTiles / F::kValues;
  BandTiles work;
  __builtin_memset(work.sums, 0, sizeof work.sums);  // a tile has as many rows as x
  const int64_t blocks = part.k / F::kValues, bands = smaller(kTogether, (part.n1 - n + kBand - 1) / kBand),
                row = row_bytes(F::kFormat, part.k);
  for (int64_t b = 0; b < blocks; b += kBlocks) {
    const RowsOfX<M> some = x.template from<RowBlock<F>>(b);
    const int64_t count = smaller(kBlocks, blocks - b);
    for (int64_t i = 0; i < bands; ++i) {
      const int64_t at = n + i * kBand;
      if constexpr (F::kValues == 32) {
        InterleavedBand<F> band = band_of_tiles<F>(part, at, b, count);
        BandOfTiles32<F, M>{band, count, some, totals[i], work}.multiply_all();
      } else if (part.interleaved) {
        InterleavedBand<F> band = band_of_tiles<F>(part, at, b, count);
        BandOfTiles256<F, M, InterleavedBand<F>>{band, count, some, totals[i], work}.multiply_all();
      } else {
        StoredBand<F> band;
        band.first = part.weight + at * row + b * F::kBytes;
        band.row_bytes = row;
        BandOfTiles256<F, M, StoredBand<F>>{band, count, some, totals[i], work}.multiply_all();
      }
    }
  }
}

template <class F, int M>
void multiply_bands_by_tiles(const LinearPart& part) {
  const int64_t rows = part.packed_rows();
  const Tiles tiles(4 * steps_of_tile<F>(), static_cast<int>(rows));
  const RowsOfX<M> x(part.x, part.x_bytes, rows);
  for (int64_t n = part.n0 / kBand * kBand; n < part.n1; n += kTogether * kBand) {
    alignas(64) float totals[kTogether][M][kBand] = {};
    multiply_together<F, M>(totals, part, n, x);
    for (int64_t i = 0; i < kTogether && n + i * kBand < part.n1; ++i)
      store_band(part, 0, rows, n + i * kBand, totals[i]);
  }
}

template <class F>
void multiply_bands_of_rows(const LinearPart& part) {
  (part.packed_rows() <= 8 ? multiply_bands_by_tiles<F, 8> : multiply_bands_by_tiles<F, kTileRows>)(part);
}

// The fewest rows of x for which bands are faster than other kernels, as measured on Emerald Rapids with
// weights in memory: unpacking codes and adding sums take as long for one row as for eight, and a tile of 16
// values takes as long as one of 32.
constexpr int64_t kNever = kTileRows + 1;
constexpr int64_t fewest_rows_as_stored(Format format) {
  switch (format) {
    case kQ4_K:
    case kQ5_K:
    case kTQ2_0:
      return 4;
    case kQ6_K:
      return 5;
    case kIQ4_XS:
      return 8;
    default:
      return kNever;
  }
}
constexpr int64_t fewest_rows_interleaved(Format format) {
  switch (format) {
    case kQ2_K:
    case kIQ4_XS:
      return kNever;
    case kQ3_K:
    case kQ6_K:
      return 12;
    default:
      return 10;
  }
}

using BandsKernel = void(const LinearPart&);
template <class F>
constexpr BandsKernel* bands_kernel_of() {
  if constexpr (words_of(F::kFormat).count && F::kFormat != kQ2_K)
    return multiply_bands_of_rows<F>;
  else
    return nullptr;
}
constexpr BandsKernel* bands_kernels[kFormats] = {nullptr, nullptr, nullptr,
#define FORMAT(name, ...) bands_kernel_of<name>(),
                                                  AIRLLM_BLOCK_FORMATS(FORMAT)
#undef FORMAT
};

// Multiplies by bands, if that is faster.
bool multiply_by_bands(const LinearPart& part) {
  const int64_t rows = part.packed_rows(), fewest = part.interleaved ? fewest_rows_interleaved(part.format)
                                                                     : fewest_rows_as_stored(part.format);
  BandsKernel* const multiply = bands_kernels[part.format];
  if (!multiply || rows < fewest || rows > kTileRows || part.n % kBand) return false;
  multiply(part);
  return true;
}
#endif

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
