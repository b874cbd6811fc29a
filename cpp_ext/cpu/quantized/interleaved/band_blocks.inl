// A block of an interleaved weight (interleaved.h): the scales and codes of LANES rows of a band, a row in
// each lane.
#ifndef AIRLLM_BAND_BLOCKS_INL
#define AIRLLM_BAND_BLOCKS_INL
#include "../blocks/blocks_codebook.inl"
#include "../gemm/panels_256.inl"
#include "../gemv/gemv_32.inl"
#include "interleaved.h"

namespace cpu::ISA {
namespace {
namespace stored {

// ---- a block of a band, LANES of its rows

template <class F>
struct BandBlock {
  static constexpr BlockWords kWords = words_of(F::kFormat);
  static constexpr int kRest = rest_bytes(F::kFormat);
  const char *words, *rest, *ahead;

  // A group of so many blocks, and rows [lane, lane + LANES) of its block b.
  static INLINE BandBlock group(const char* at, int64_t blocks, bool prefetches) {
    return {at, at + blocks * kWords.count * 4 * kBand, prefetches ? at + cpu::prefetch.ahead : nullptr};
  }
  INLINE BandBlock of(int64_t b, int lane) const {
    return {words + b * kWords.count * 4 * kBand + 4 * lane,
            rest + b * kRest * kBand + rest_width(F::kFormat) * lane,
            ahead ? ahead + b * F::kBytes * kBand + F::kBytes * lane : nullptr};
  }
  // Prefetches a part of as many bytes as this block has. Each load of a block is an instruction of its own,
  // with blocks between its addresses, so the hardware does not see one stream and prefetches too little.
  INLINE void prefetch(int part, int parts) const {
    if (!ahead) return;
    constexpr int kLines = (F::kBytes * LANES + 63) / 64;
    for (int line = part * kLines / parts; line < (part + 1) * kLines / parts; ++line)
      if (cpu::prefetch.to_second_cache)
        __builtin_prefetch(ahead + 64 * line, 0, 2);
      else
        __builtin_prefetch(ahead + 64 * line);
  }
  // The word at this byte of the block.
  INLINE Int word(int byte) const {
    return load_int(words + 4 * kBand * place_of_word(F::kFormat, (byte - kWords.first) / 4));
  }
  INLINE Vec half(int number) const {
    return load(reinterpret_cast<const Float16*>(rest + 2 * kBand * number));
  }
  INLINE Int half_bits(int number) const { return (Int)widen_u16(rest + 2 * kBand * number); }
  INLINE Int byte() const {
#ifdef WIDEN_I8  // GCC would extract each byte separately
    return WIDEN_I8(rest) & 255;
#else
    return __builtin_convertvector(*reinterpret_cast<const LanesOfBytesInMemory*>(rest), Int) & 255;
#endif
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
  return {
      {{less_32(nibbles_of(a, 0) | two_bits_of(rest, 4)), less_32(nibbles_of(b, 0) | two_bits_of(rest, 2)),
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
  return from_table(IQ4_NL::levels() ^ (int8_t)kSignedZero,
                    field((Bytes)w.word(IQ4_XS::kLow + 4 * word), 4 * f, 15));
}
INLINE Bytes codes_of_word(const BandBlock<TQ2_0>& w, int word, int f) {
  return field((Bytes)w.word(4 * word), 2 * f, 3);
}

// Steps of four values in the order of sub-blocks: the word and the field with their codes, and their place
// in x as Group256 has it; and the step at each place.
template <class F>
struct Steps256 {
  int word[64] = {}, field[64] = {}, place[64] = {}, at_place[64] = {};
  constexpr Steps256() {
    int step = 0;
    for (int sub = 0; sub < 256 / F::kUnit; ++sub)
      for (int w = 0; w < 64 / F::kFields; ++w)
        for (int f = 0; f < F::kFields; ++f)
          if (F::unit(4 * w, f) * 16 / F::kUnit == sub) {
            word[step] = w;
            field[step] = f;
            place[step] = ((w / LANES) * F::kFields + f) * LANES + w % LANES;
            at_place[place[step]] = step;
            ++step;
          }
  }
};
template <class F>
constexpr Steps256<F> steps256;

// A byte of each lane, four times.
template <int kByte, int... I>
INLINE Bytes byte_of_lanes(Bytes v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, (I / 4 * 4 + kByte)...);
}
INLINE Bytes byte_of_lanes(Int v, int byte) {
  using All = std::make_integer_sequence<int, 4 * LANES>;
  const Bytes bytes = (Bytes)v;
  return byte == 0   ? byte_of_lanes<0>(bytes, All{})
         : byte == 1 ? byte_of_lanes<1>(bytes, All{})
         : byte == 2 ? byte_of_lanes<2>(bytes, All{})
                     : byte_of_lanes<3>(bytes, All{});
}
// Bits 4 step to 4 step + 3 of each lane, as bit 4 of its bytes.
INLINE Bytes fifth_bits_of(Int bits, int step) {
  const Bytes mask = (Bytes)(Int{} + (0x08040201 << step % 2 * 4));
  return ((byte_of_lanes(bits, step / 2) & mask) == mask) & 16;
}

template <class F>
INLINE Bytes codes_of_step(const BandBlock<F>& w, int step) {  // of values 4 step to 4 step + 3
  if constexpr (BandBlock<F>::kWords.count == 8) {
    return (Bytes)w.word(F::kLow + 4 * step) ^ (int8_t)kSignedZero;
  } else {
    const Bytes low = field((Bytes)w.word(F::kLow + step % 4 * 4), step / 4 * 4, 15);
    if constexpr (F::kHasLevels)
      return from_table(F::unsigned_levels(), low);
    else if constexpr (F::kFifth)
      return low | fifth_bits_of(w.word(F::kFifth), step);
    else
      return low;
  }
}
template <class F>
INLINE Bytes codes_at(const BandBlock<F>& w, int step) {
  if constexpr (F::kValues == 32)
    return codes_of_step(w, step);
  else
    return codes_of_word(w, steps256<F>.word[step], steps256<F>.field[step]);
}

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
