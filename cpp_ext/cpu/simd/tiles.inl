// Tiles of AMX: registers of 16 rows of 64 bytes, whose products are sums of four products of bytes (TILES).
//
// A thread has tile registers only while Tiles lives: what it leaves in them, the system would save whenever
// it runs another thread. The numbers of tiles are part of the instructions, so they are macros' arguments.
// They are written as text: what compilers declare for them says neither which memory they read, nor that of
// others.
#ifndef AIRLLM_TILES_INL
#define AIRLLM_TILES_INL
#include "bytes.inl"

namespace cpu::ISA {
namespace {

#ifdef TILES
constexpr int kTileRows = 16;  // and columns of sums

// The tile's number; the first row; the bytes from one row to the next.
#define LOAD_TILE(tile, from, stride) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(from), "r"(int64_t{stride}) : "memory")
#define STORE_TILE(tile, to, stride) \
  __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(to), "r"(int64_t{stride}) : "memory")
#define ZERO_TILE(tile) __asm__ volatile("tilezero %%tmm" #tile : :)
// sums += the rows of x, signed bytes, times columns of weights: signed bytes, or unsigned ones
#define ADD_TILES_SIGNED(sums, x, w) __asm__ volatile("tdpbssd %%tmm" #w ", %%tmm" #x ", %%tmm" #sums : :)
#define ADD_TILES_UNSIGNED(sums, x, w) __asm__ volatile("tdpbsud %%tmm" #w ", %%tmm" #x ", %%tmm" #sums : :)

// Four tiles of sums (0 to 3), two of x (4, 5) and two of weights (6, 7), for products of `depth` <= 64
// values and `rows` of x. If another library keeps shapes in this thread, it gets them back.
class Tiles {
 public:
  explicit INLINE Tiles(int depth, int rows = kTileRows) {
    __asm__ volatile("sttilecfg %0" : "=m"(before_));
    Shapes shapes = {};
    shapes.palette = 1;
    for (int tile = 0; tile < 8; ++tile) {
      const bool of_x = tile == 4 || tile == 5, of_weights = tile >= 6;
      shapes.row_bytes[tile] = static_cast<uint16_t>(of_x ? depth : 64);
      shapes.rows[tile] = static_cast<uint8_t>(of_weights ? depth / 4 : rows);
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
  }
  INLINE ~Tiles() {
    if (before_.palette)
      __asm__ volatile("ldtilecfg %0" : : "m"(before_));
    else
      __asm__ volatile("tilerelease" : :);
  }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

 private:
  struct Shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  };
  Shapes before_;
};
#endif

}  // namespace
}  // namespace cpu::ISA

#endif
