// Loads the bytes and float16 numbers of stored blocks as vectors, for a group of blocks at once.
#ifndef AIRLLM_BLOCK_BYTES_INL
#define AIRLLM_BLOCK_BYTES_INL
#include "bytes.inl"
#ifdef BLOCK_BYTES
#include BLOCK_BYTES
#endif

namespace cpu::ISA {
namespace {
namespace stored {

#ifndef BLOCK_BYTES

// A stored float16.
INLINE float half_at(const char* p) {
  const Float16 lanes[LANES] = {{word_at(p)}};
  return load(lanes)[0];
}

// The low byte of each lane.
INLINE LanesOfBytes low_bytes(Int v) { return __builtin_convertvector(v, LanesOfBytes); }

// Converts bytes to words.
typedef int8_t EightBytes __attribute__((vector_size(8)));
typedef int8_t EightBytesInMemory __attribute__((vector_size(8), aligned(1), may_alias));
INLINE EightWords words_of(uint64_t eight) { return __builtin_convertvector((EightBytes)eight, EightWords); }
INLINE EightWords words_at(const char* p) {
  return __builtin_convertvector(*reinterpret_cast<const EightBytesInMemory*>(p), EightWords);
}
INLINE EightWords first_words_of(Sixteen v) {
  return __builtin_convertvector(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7), EightWords);
}
INLINE EightWords last_words_of(Sixteen v) {
  return __builtin_convertvector(__builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15), EightWords);
}

template <class V>
INLINE V from_table(Sixteen table, V index) {
  alignas(64) Sixteen all[sizeof(V) / 16];
  __builtin_memcpy(all, &index, sizeof all);
  for (Sixteen& each : all) each = look_up(table, each);
  __builtin_memcpy(&index, all, sizeof all);
  return index;
}

template <int kStride>
INLINE const char* block_at(const char* p, int number) {
  return p + number * kStride;
}
template <int kStride>
INLINE const char* block_at(HalfGroup half, int number) {
  return half.p + number % 2 * kStride;
}

// 16 bytes of each block.
template <int kStride, class Group>
INLINE Bytes pieces(Group p) {
  alignas(64) char all[4 * LANES];
  for (int g = 0; g < kGroup; ++g) __builtin_memcpy(all + 16 * g, block_at<kStride>(p, g), 16);
  return load_bytes(all);
}

// Two bytes of each block, each repeated eight times.
template <int kStride, class Group>
INLINE Bytes eights(Group p) {
  alignas(64) uint64_t all[LANES / 2];
  for (int b = 0; b < LANES / 2; ++b)
    all[b] = 0x0101010101010101u * static_cast<unsigned char>(block_at<kStride>(p, b / 2)[b % 2]);
  return load_bytes(all);
}

// The first bytes at p, each eight times, and bytes of ones where the bits at p are set, of a whole vector.
INLINE Bytes each_eight_times(const char* p) { return eights<2>(p); }
INLINE Bytes ones_of_bits(const char* p) {
  const Bytes masks = (Bytes)(Longs{} + 0x8040201008040201u);
  return (each_eight_times(p) & masks) == masks;
}

// A float16 of each block, in its four lanes.
template <int kStride, class Group>
INLINE Vec half_floats(Group p) {
  if constexpr (kGroup == 1) return set(half_at(p));
  alignas(64) Float16 all[LANES];
  for (int i = 0; i < LANES; ++i) all[i].bits = word_at(block_at<kStride>(p, i / 4));
  return load(all);
}
template <int kStride>
INLINE Vec half_floats(HalfGroup group) {
  alignas(64) Float16 all[LANES] = {};
  for (int i = 0; i < LANES / 2; ++i) all[i].bits = word_at(group.p + i / 4 * kStride);
  return load(all);
}

template <int kStride>
INLINE HalfFloats half_floats_of_blocks(const char* p) {
  alignas(64) Float16 first[LANES], second[LANES];
  for (int i = 0; i < LANES; ++i) {
    first[i].bits = word_at(p + block_of_lane(i) * kStride);
    second[i].bits = word_at(p + block_of_lane(i) * kStride + 2);
  }
  return {load(first), load(second)};
}

// 32 bytes, or as many of them as a vector holds, starting at byte 16 * `half`. Each has its bit `from` moved
// to bit `to`. With 16 lanes the 32 bytes are repeated, the second time with bit `other_from`. The other bits
// are unspecified.
INLINE Bytes move_bits(const char* p, int half, int from, int other_from, int to) {
  const auto move = [=](Bytes v, int bit) {
    return bit > to ? (Bytes)((Words)v >> (bit - to)) : (Bytes)((Words)v << (to - bit));
  };
  if (LANES == 4) return move(load_bytes(p + 16 * half), from);
  alignas(64) char all[4 * LANES];
  for (int i = 0; i < 4 * LANES; i += 32) __builtin_memcpy(all + i, p, 32);
  alignas(64) const Bytes first = move(load_bytes(all), from), second = move(load_bytes(all), other_from);
  __builtin_memcpy(all, &first, 32);
  if (LANES == 16) __builtin_memcpy(all + 32, reinterpret_cast<const char*>(&second) + 32, 32);
  return load_bytes(all);
}

// The other lanes are zero.
template <class Four>
INLINE auto in_first_lanes(Four four) {
  alignas(64) decltype(four[0] + four[0]) all[LANES] = {};
  __builtin_memcpy(all, &four, sizeof four);
  typedef decltype(four[0] + four[0]) Lanes __attribute__((vector_size(4 * LANES)));
  return *reinterpret_cast<const Lanes*>(all);
}

#endif

INLINE float half_at(const uint8_t* p) { return half_at(reinterpret_cast<const char*>(p)); }

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
