// Products of many rows of x with blocks of 256 values by tiles (TILES). A tile multiplies 64 values at a
// time and sums bytes only, while each sub-block of 16 or 32 values has a scale. So the codes of a panel are
// multiplied by their scales first, once for all rows of x. Such a product has up to 14 bits: its low byte
// and its high byte are two planes, whose sums are added as integers. Where it fits a byte, there is one
// plane.
//
// The sums of a block are those of panels_256.inl, and are added in the same order: a result has the same
// bits.
#ifndef AIRLLM_TILES_256_INL
#define AIRLLM_TILES_256_INL
#include "../../simd/tiles.inl"
#include "../interleaved/interleaved.inl"

namespace cpu::ISA {
namespace {
namespace stored {

#ifdef TILES
// Whether the negative product of a scale and a code fits a byte: for q3_k it is -124 to 128, and so -128 to
// 124.
template <class F>
constexpr int kPlanesOf =
    F::kFormat == kQ2_K || F::kFormat == kQ3_K || F::kFormat == kTQ1_0 || F::kFormat == kTQ2_0 ? 1 : 2;

// A block of LANES rows of weights.
template <class A, int kPlanes>
struct TilePanel {
  int32_t planes[kPlanes][64][LANES];    // the low bytes and the high ones; or the bytes, negative
  int32_t factors[A::kSubs / 2][LANES];  // as Panel256 has them
  float scale[LANES], offset_scale[LANES];
};

// Even bytes from the low ones of words, odd ones from the others.
INLINE Int bytes_of_words(Shorts even, Shorts odd) {
  return (Int)((even & (int16_t)255) | (odd & (int16_t)-256));
}

template <class A, int kPlanes>
INLINE void set_planes(TilePanel<A, kPlanes>* to, const Panel256<A>& from) {
  for (int run = 0; run < Panel256<A>::kRuns; ++run) {
    const Shorts scales = words_of_scales<A>(load_int(from.scales[run])),
                 by = kPlanes == 1 ? -scales : scales;
#pragma GCC unroll 8
    for (int i = 0; i < A::kRun; ++i) {
      const int step = A::step(run, i);
      const Bytes codes = load_bytes(from.codes[step]);
      const Shorts even = even_codes<A>(codes) * by, odd = odd_codes<A>(codes) * by;
      store_int(to->planes[0][step], bytes_of_words(even, odd << 8));
      if constexpr (kPlanes == 2) store_int(to->planes[1][step], bytes_of_words(even >> 8, odd));
    }
  }
  if constexpr (A::kOffset) {
    __builtin_memcpy(to->factors, from.factors, sizeof to->factors);
    __builtin_memcpy(to->offset_scale, from.offset_scale, sizeof to->offset_scale);
  }
  __builtin_memcpy(to->scale, from.scale, sizeof to->scale);
}

// 16 rows of x, of which those before `first` are another tile's.
struct RowsOfTile {
  int64_t row, first;  // `row`: the first one of the tile, among those of the totals
};

// A block of 32 rows of x with a panel, or with two of one plane.
template <class A, int kPlanes>
struct TileProduct {
  static constexpr int kPanels = 3 - kPlanes;
  const TilePanel<A, kPlanes>* panels;
  int64_t some;  // panels
  RowsOfTile tiles[2];
  const char* x[2];
  int64_t x_bytes;
  float (*totals)[LANES];
  int64_t totals_of_panel;
};

// The sums of four tiles: of the first rows with both planes or panels, and of the others.
using SumsOfTiles = int32_t[4][kTileRows][LANES];

// totals += the sums of kRows rows of a tile of x from row `first` on, with one panel
template <class A, int kPlanes, int kRows>
INLINE void add_sums_of_rows(const TileProduct<A, kPlanes>& of, const SumsOfTiles& sums, int64_t v, int tile,
                             int64_t first) {
  const TilePanel<A, kPlanes>& panel = of.panels[v];
  const Vec scale = load(panel.scale), offset_scale = A::kOffset ? load(panel.offset_scale) : Vec{};
  const char* const x = of.x[tile] + first * of.x_bytes;
  float (*const totals)[LANES] = of.totals + v * of.totals_of_panel + of.tiles[tile].row + first;
  Int correction[kRows] = {};
  if constexpr (A::kOffset)
#pragma GCC unroll 8
    for (int i = 0; i < A::kSubs / 2; ++i) {
      const Int factors = load_int(panel.factors[i]);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const Group256& row = *reinterpret_cast<const Group256*>(x + r * of.x_bytes);
        correction[r] = (Int)ADD_SUMS_OF_PAIRS(correction[r], factors, four_in_all_lanes(row.sums + 2 * i));
        keep_in_register(correction[r]);
      }
    }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const Group256& row = *reinterpret_cast<const Group256*>(x + r * of.x_bytes);
    const Int sum = kPlanes == 2
                        ? load_int(sums[2 * tile][first + r]) + (load_int(sums[2 * tile + 1][first + r]) << 8)
                        : -load_int(sums[2 * tile + v][first + r]);
    store(totals[r], add_block_sums<A>(load(totals[r]), row.scale, scale, sum, offset_scale, correction[r]));
  }
}

// totals += the sums of rows [begin, begin + 4) of both tiles of x
template <class A, int kPlanes>
INLINE void add_sums_of_tiles(const TileProduct<A, kPlanes>& of, const SumsOfTiles& sums, int begin) {
  for (int64_t v = 0; v < of.some; ++v)
    for (int tile = 0; tile < 2; ++tile)
      if (of.tiles[tile].first <= begin)
        add_sums_of_rows<A, kPlanes, 4>(of, sums, v, tile, begin);
      else
        for (int64_t r = of.tiles[tile].first; r < begin + 4; ++r)
          add_sums_of_rows<A, kPlanes, 1>(of, sums, v, tile, r);
}

// sums = the products of 32 rows of x with two planes, a quarter of the block at a time; after each of these
// `each` adds what the product before has left, while the tiles compute.
template <class A, int kPlanes, class Each>
INLINE void multiply_tiles(SumsOfTiles& sums, const TileProduct<A, kPlanes>& of, const Each& each) {
  const TilePanel<A, kPlanes>& other = of.panels[kPlanes == 1 && of.some == 2];
  ZERO_TILE(0);
  ZERO_TILE(1);
  ZERO_TILE(2);
  ZERO_TILE(3);
#pragma GCC unroll 4
  for (int quarter = 0; quarter < 4; ++quarter) {
    LOAD_TILE(4, of.x[0] + 64 * quarter, of.x_bytes);
    LOAD_TILE(6, of.panels->planes[0][16 * quarter], 4 * LANES);
    if constexpr (kPlanes == 2) {
      ADD_TILES_UNSIGNED(0, 4, 6);
    } else {
      ADD_TILES_SIGNED(0, 4, 6);
    }
    LOAD_TILE(7, other.planes[kPlanes - 1][16 * quarter], 4 * LANES);
    ADD_TILES_SIGNED(1, 4, 7);
    LOAD_TILE(5, of.x[1] + 64 * quarter, of.x_bytes);
    if constexpr (kPlanes == 2) {
      ADD_TILES_UNSIGNED(2, 5, 6);
    } else {
      ADD_TILES_SIGNED(2, 5, 6);
    }
    ADD_TILES_SIGNED(3, 5, 7);
    each(4 * quarter);
  }
  STORE_TILE(0, sums[0], 4 * LANES);
  STORE_TILE(1, sums[1], 4 * LANES);
  STORE_TILE(2, sums[2], 4 * LANES);
  STORE_TILE(3, sums[3], 4 * LANES);
}

// Fetches rows [begin, begin + 4) of both tiles of the next block of x. Its rows lie far apart: the hardware
// does not see them coming.
template <class A, int kPlanes>
INLINE void prefetch_next_block(const TileProduct<A, kPlanes>& of, int begin) {
  for (const char* const x : of.x)
    for (int r = begin; r < begin + 4; ++r)
      for (int64_t at = 0; at < static_cast<int64_t>(sizeof(Group256)); at += 64)
        __builtin_prefetch(x + r * of.x_bytes + sizeof(Group256) + at, 0, 2);
}

// Tile `number` of `rows` >= kTileRows rows: the last one overlaps the one before it, and there may be none.
INLINE RowsOfTile rows_of_tile(int64_t number, int64_t rows) {
  const int64_t at = number * kTileRows, row = smaller(at, rows - kTileRows);
  return {row, smaller(at - row, kTileRows)};
}

constexpr int kMostRowsOfTiles = 512, kPanelsOfTiles = 4;
template <class A, int kPlanes>
struct TileWork {
  Panel256<A> unpacked;
  TilePanel<A, kPlanes> panels[kPanelsOfTiles];
  SumsOfTiles sums[2];
  float totals[kPanelsOfTiles][kMostRowsOfTiles][LANES];
};

// totals += block b of `some` panels with `rows` rows of x, of which `x` is the first
template <class A, int kPlanes>
void add_block_of_tiles(TileWork<A, kPlanes>& work, int64_t some, const char* x, int64_t x_bytes,
                        int64_t rows) {
  using Product = TileProduct<A, kPlanes>;
  Product before = {};
  int64_t number = 0;
  for (int64_t tile = 0; tile * kTileRows < rows; tile += 2)
    for (int64_t v = 0; v < some; v += Product::kPanels, ++number) {
      const RowsOfTile first = rows_of_tile(tile, rows), second = rows_of_tile(tile + 1, rows);
      const Product now = {work.panels + v, smaller(Product::kPanels, some - v),
                           {first, second}, {x + first.row * x_bytes, x + second.row * x_bytes},
                           x_bytes,         work.totals[v],
                           kMostRowsOfTiles};
      SumsOfTiles& sums = work.sums[number % 2];
      const SumsOfTiles& last = work.sums[1 - number % 2];
      multiply_tiles(sums, now, [&](int row) {
        if (!v) prefetch_next_block(now, row);
        if (number) add_sums_of_tiles(before, last, row);
      });
      before = now;
    }
  for (int row = 0; row < kTileRows; row += 4) add_sums_of_tiles(before, work.sums[1 - number % 2], row);
}

// `rows` packed rows of x, at least kTileRows and at most kMostRowsOfTiles, from packed row m0 on.
template <class A, int kPlanes>
void multiply_rows_by_tiles(const LinearPart& part, int64_t m0, int64_t rows, UnpackPanel<A>* unpack) {
  alignas(64) TileWork<A, kPlanes> work;
  const int64_t per_row = part.with_rounding_error ? 2 : 1, step = kPanelsOfTiles * LANES;
  for (int64_t n = part.n0; n < part.n1; n += step) {
    const int64_t some = smaller(kPanelsOfTiles, (part.n1 - n + LANES - 1) / LANES);
    for (int64_t v = 0; v < some; ++v) __builtin_memset(work.totals[v], 0, rows * sizeof work.totals[v][0]);
    for (int64_t b = 0; b < part.k / 256; ++b) {
      for (int64_t v = 0; v < some; ++v) {
        unpack(&work.unpacked, part, n + v * LANES, b, n + v * LANES + step);
        set_planes(&work.panels[v], work.unpacked);
      }
      add_block_of_tiles(work, some, part.x + m0 * part.x_bytes + b * static_cast<int64_t>(sizeof(Group256)),
                         part.x_bytes, rows);
    }
    for (int64_t m = 0; m < rows; m += per_row)
      for (int64_t v = 0; v < some; ++v)
        store_totals(part, (m0 + m) / per_row, n + v * LANES, work.totals[v] + m);
  }
}

// The rows of x are taken in parts of about as many rows. The last part has a whole tile: it may repeat rows.
template <class A, int kPlanes>
void many_rows_by_tiles(const LinearPart& part, UnpackPanel<A>* unpack) {
  const Tiles tiles(64);
  constexpr int64_t kPair = 2 * kTileRows;
  const int64_t rows = part.packed_rows(), parts = (rows + kMostRowsOfTiles - 1) / kMostRowsOfTiles,
                each = ((rows + parts - 1) / parts + kPair - 1) / kPair * kPair;
  for (int64_t m = 0; m < rows; m += each) {
    const int64_t first = smaller(m, rows - kTileRows);
    multiply_rows_by_tiles<A, kPlanes>(part, first, smaller(each, rows - first), unpack);
  }
}
#endif

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
