// Products of many rows of x with blocks of 32 values by tiles (TILES): gemm.inl's, with the same bits. A
// block is a product of tiles, whose sums are scaled and added in float32, in registers.
//
//   rows (a strip)       for each chunk of 32 of k, codes [16][32], scales [16], and for a format with minima
//   the
//                        sums [16] by which these are multiplied
//   columns (a panel)    as gemm.inl has it, with signed codes
#ifndef AIRLLM_TILES_32_INL
#define AIRLLM_TILES_32_INL
#include "../../simd/tiles.inl"
#include "gemm.inl"

namespace cpu::ISA {
namespace {

#ifdef TILES
// What one pass over x multiplies: chunks of k, and columns; both stay in the second cache with the rows of
// x.
constexpr int64_t kPassChunks = 32, kPassColumns = 128, kPassRows = 512;
static_assert(kByteColumns == 2 * LANES && kTileRows == LANES);

constexpr int64_t strip_chunk_bytes(bool mins) { return kTileRows * (32 + 4 + 4 * mins); }

int64_t tile_strip_bytes(Format name, int64_t k) { return k / 32 * strip_chunk_bytes(kByBytes[name].mins); }

// Row r of a strip.
template <class T>
INLINE void quantize_row_of_tiles(bool mins, char* strip, const T* x, int64_t chunks, int64_t r) {
  for (; chunks--; x += 32, strip += strip_chunk_bytes(mins)) {
    int8_t* const codes = reinterpret_cast<int8_t*>(strip) + 32 * r;
    float* const scales = reinterpret_cast<float*>(strip + 32 * kTileRows);
    scales[r] = byte_codes(codes, x);
    if (!mins) continue;
    int32_t sum = 0;
    for (int i = 0; i < 32; ++i) sum += codes[i];
    scales[kTileRows + r] = scales[r] * sum;
  }
}

template <class T>
void quantize_tile_strips(Format name, char* strips, const void* x, int64_t m, int64_t k, int64_t strip0,
                          int64_t strip1) {
  for (int64_t i = strip0; i < strip1; ++i)
    for (int64_t r = 0; r < kTileRows; ++r) {
      const int64_t row = i * kTileRows + r;  // past the last row any row will do: its result is dropped
      quantize_row_of_tiles(kByBytes[name].mins, strips + i * tile_strip_bytes(name, k),
                            static_cast<const T*>(x) + (row < m ? row : m - 1) * k, k / 32, r);
    }
}

// totals += what the sums of a chunk give
template <bool kMins>
INLINE void add_chunk(Vec (&totals)[kTileRows], const int32_t (*sums)[LANES], const char* x,
                      const float* scales) {
  const float* const of_rows = reinterpret_cast<const float*>(x + 32 * kTileRows);
  const Vec of_columns = load(scales), mins = kMins ? load(scales + kByteColumns) : Vec{};
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
    totals[r] += of_rows[r] * (of_columns * __builtin_convertvector(load(sums[r]), Vec));
    if (kMins) totals[r] += of_rows[kTileRows + r] * mins;
  }
}

// totals (kTileRows, LANES) += `chunks` chunks of a strip times LANES columns of a panel. The sums of a chunk
// are added while the tiles of the next one multiply.
template <bool kMins>
void multiply_chunks(float (*to)[LANES], const char* x, const int32_t* w, int64_t chunks) {
  constexpr int64_t kRowBytes = strip_chunk_bytes(kMins), kWords = chunk_of_panel(1, kMins);
  alignas(64) int32_t sums[2][kTileRows][LANES];
  Vec totals[kTileRows];
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) totals[r] = load(to[r]);
  const auto scales = [](const int32_t* of) { return reinterpret_cast<const float*>(of + 8 * kByteColumns); };
  for (int64_t c = 0; c < chunks; ++c, x += kRowBytes, w += kWords) {
    if (c % 2) {
      ZERO_TILE(1);
      LOAD_TILE(5, x, 32);
      LOAD_TILE(7, w, 4 * kByteColumns);
      ADD_TILES_SIGNED(1, 5, 7);
      add_chunk<kMins>(totals, sums[0], x - kRowBytes, scales(w - kWords));
      STORE_TILE(1, sums[1], 4 * LANES);
    } else {
      ZERO_TILE(0);
      LOAD_TILE(4, x, 32);
      LOAD_TILE(6, w, 4 * kByteColumns);
      ADD_TILES_SIGNED(0, 4, 6);
      if (c) add_chunk<kMins>(totals, sums[1], x - kRowBytes, scales(w - kWords));
      STORE_TILE(0, sums[0], 4 * LANES);
    }
  }
  add_chunk<kMins>(totals, sums[(chunks - 1) % 2], x - kRowBytes, scales(w - kWords));
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) store(to[r], totals[r]);
}

// What a thread has: panels of the columns of a pass, and the totals of its rows.
struct TilePass {
  int32_t panels[kPassColumns / kByteColumns][kPassChunks * chunk_of_panel(1, true)];
  float totals[kPassRows / kTileRows][kPassColumns / LANES][kTileRows][LANES];
};
int64_t tile_pass_bytes(Format, int64_t) { return sizeof(TilePass); }

// Codes as signed bytes, which were stored with `zero` added.
INLINE void remove_zero(int32_t* panel, int64_t words, int64_t chunks, int zero) {
  for (; chunks--; panel += words)
    for (int i = 0; i < 8 * kByteColumns; i += LANES)
      stored::store_int(panel + i, (Int)(stored::load_bytes(panel + i) - (int8_t)zero));
}

// A part of a product: columns [j, j + n) of it, rows of strips [strip0, strip1).
struct PassPart {
  int64_t j, n, strip0, strip1;
};

// totals += chunks [c, c + chunks) of k
void add_pass(const ByBytes& format, TilePass& pass, const char* strips, const char* weight,
              const PrefillPart& part, const PassPart& of, int64_t c, int64_t chunks, int64_t block_bytes) {
  const int64_t words = chunk_of_panel(1, format.mins), row_bytes = part.k / 32 * block_bytes,
                strip_bytes = part.k / 32 * strip_chunk_bytes(format.mins);
  for (int64_t v = 0; v * kByteColumns < of.n; ++v) {
    const int64_t j = of.j + v * kByteColumns, left = of.n - v * kByteColumns,
                  n = left < kByteColumns ? left : kByteColumns;
    part.interleaved
        ? format.unpack_bands(pass.panels[v], weight, part.k, j, n, c, chunks)
        : format.unpack(pass.panels[v], weight + j * row_bytes + c * block_bytes, row_bytes, n, chunks);
    if (format.offset) remove_zero(pass.panels[v], words, chunks, format.offset);
  }
  for (int64_t i = of.strip0; i < of.strip1; ++i) {
    const char* const x = strips + i * strip_bytes + c * strip_chunk_bytes(format.mins);
    for (int64_t v = 0; v * LANES < of.n; ++v)
      (format.mins ? multiply_chunks<true> : multiply_chunks<false>)(pass.totals[i - of.strip0][v], x,
                                                                     pass.panels[v / 2] + v % 2 * LANES,
                                                                     chunks);
  }
}

void store_pass(const TilePass& pass, void* out, DType dtype, const PrefillPart& part, const PassPart& of) {
  for (int64_t row = of.strip0 * kTileRows; row < part.m && row < of.strip1 * kTileRows; ++row)
    for (int64_t v = 0; v * LANES < of.n; ++v) {
      const int64_t left = of.n - v * LANES;
      store_row(out, dtype, row * part.n + of.j + v * LANES, left < LANES ? left : LANES,
                pass.totals[row / kTileRows - of.strip0][v][row % kTileRows]);
    }
}

void tile_product(Format name, void* out, DType dtype, const char* strips, const char* weight,
                  const PrefillPart& part, char* workspace) {
  const Tiles tiles(32);
  TilePass& pass = *reinterpret_cast<TilePass*>(workspace);
  const int64_t strip_count = (part.m + kTileRows - 1) / kTileRows, most = kPassRows / kTileRows;
  for (int64_t strip = 0; strip < strip_count; strip += most)
    for (int64_t j = part.n0; j < part.n1; j += kPassColumns) {
      const PassPart of = {j, smaller(kPassColumns, part.n1 - j), strip, smaller(strip + most, strip_count)};
      __builtin_memset(pass.totals, 0, (of.strip1 - of.strip0) * sizeof pass.totals[0]);
      for (int64_t c = 0; c < part.k / 32; c += kPassChunks)
        add_pass(kByBytes[name], pass, strips, weight, part, of, c, smaller(kPassChunks, part.k / 32 - c),
                 kBlocks[name].bytes);
      store_pass(pass, out, dtype, part, of);
    }
}

// `all` with products by tiles.
constexpr PrefillKernels with_tiles(PrefillKernels all) {
  all.rows = kTileRows;
  all.columns = kByteColumns;
  all.by_bytes = by_bytes;
  all.strip_bytes = tile_strip_bytes;
  all.quantize[kFloat32] = quantize_tile_strips<float>;
  all.quantize[kFloat16] = quantize_tile_strips<Float16>;
  all.quantize[kBFloat16] = quantize_tile_strips<BFloat16>;
  all.product = tile_product;
  all.workspace_bytes = tile_pass_bytes;
  return all;
}
#endif

}  // namespace
}  // namespace cpu::ISA

#endif
