// Parts of blocks whose values are vectors of a codebook, by functions as in block_parts.wgsl. A vector has 16
// bits: the numbers of the levels of eight values (iq1, iq2) or of four (iq3). Of iq2 and iq3, values are
// positive, and have a sign each; in iq1, 1 is added to a vector, or -1. A sub-block has 2 s + 1 steps.
fn vector_at(i: u32) -> u32 {
  let words = books[i / 8u];
  return words[i / 2u % 4u] >> (i % 2u * 16u);
}
fn bits_at(at: u32, shift: u32, mask: u32) -> u32 {
  return (byte_at(at) >> shift) & mask;
}
fn nibble_of(at: u32, i: u32) -> u32 {
  return bits_at(at + i / 2u, i % 2u * 4u, 15u);
}
fn pair_at(at: u32) -> u32 {  // of bytes, at an even address
  return (ARRAY_words[at / 4u] >> (at % 4u * 8u)) & 0xffffu;
}
fn steps(scale: f32, s: u32) -> vec2<f32> {
  return without_offset(scale * f32(2u * s + 1u));
}

// Numbers of levels: all four of a vector, or four of eight.
fn four_levels(vector: u32) -> vec4<u32> {
  return (vec4<u32>(vector) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u);
}
fn half_of_eight(vector: u32, i: u32) -> vec4<u32> {
  return (vec4<u32>(vector >> (i % 2u * 8u)) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(3u);
}
// The eighth of eight signs makes the number of ones even.
fn eight_signs(seven: u32) -> u32 {
  return (seven & 127u) | ((countOneBits(seven & 127u) & 1u) << 7u);
}
// With four of eight signs.
fn with_signs(sizes: vec4<u32>, signs: u32, i: u32) -> vec4<f32> {
  let four = (vec4<u32>(signs >> (i % 2u * 4u)) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u);
  return vec4<f32>(sizes) * (1.0 - 2.0 * vec4<f32>(four));
}
fn levels_of_iq2(index: u32, signs: u32, i: u32) -> vec4<f32> {
  let sizes = (vec4<u32>(0x2b1908u) >> (half_of_eight(vector_at(index), i) * 8u)) & vec4<u32>(255u);
  return with_signs(sizes, signs, i);
}
fn levels_of_iq1(index: u32, negative: u32, i: u32) -> vec4<f32> {
  return vec4<f32>(half_of_eight(vector_at(BOOK_IQ1 + index), i) * 8u) - select(7.0, 9.0, negative != 0u);
}

fn codes_iq3_xxs(block: u32, part: u32, i: u32) -> vec4<f32> {
  let numbers = four_levels(vector_at(BOOK_IQ3_XXS + byte_at(block + 2u + 8u * part + i)));
  let sizes = select(numbers * 8u + 4u, vec4<u32>(62u), numbers == vec4<u32>(7u));
  return with_signs(sizes, eight_signs(bytes_at(block + 66u + 4u * part) >> (i / 2u * 7u)), i);
}
fn scales_iq3_xxs(block: u32, part: u32, half: u32) -> vec2<f32> {
  return steps(half_at(block) * 0.25, bytes_at(block + 66u + 4u * part) >> 28u);
}
fn codes_iq3_s(block: u32, part: u32, i: u32) -> vec4<f32> {
  let index = byte_at(block + 2u + 8u * part + i) | (bits_at(block + 66u + part, i, 1u) << 8u);
  let sizes = four_levels(vector_at(BOOK_IQ3_S + index)) * 2u + 1u;
  return with_signs(sizes, byte_at(block + 74u + 4u * part + i / 2u), i);
}
fn scales_iq3_s(block: u32, part: u32, half: u32) -> vec2<f32> {
  return steps(half_at(block), nibble_of(block + 106u, part));
}

fn codes_iq2_xxs(block: u32, part: u32, i: u32) -> vec4<f32> {
  let first = block + 2u + 8u * part;
  let signs = eight_signs(bytes_at(first + 4u) >> (i / 2u * 7u));
  return levels_of_iq2(BOOK_IQ2_XXS + byte_at(first + i / 2u), signs, i);
}
fn scales_iq2_xxs(block: u32, part: u32, half: u32) -> vec2<f32> {
  return steps(half_at(block) * 0.125, bytes_at(block + 6u + 8u * part) >> 28u);
}
fn codes_iq2_xs(block: u32, part: u32, i: u32) -> vec4<f32> {
  let both = pair_at(block + 2u + 8u * part + i / 2u * 2u);
  return levels_of_iq2(BOOK_IQ2_XS + (both & 511u), eight_signs(both >> 9u), i);
}
fn scales_iq2_xs(block: u32, part: u32, half: u32) -> vec2<f32> {
  return steps(half_at(block) * 0.125, nibble_of(block + 66u, 2u * part + half));
}
fn codes_iq2_s(block: u32, part: u32, i: u32) -> vec4<f32> {
  let number = 4u * part + i / 2u;
  let index = byte_at(block + 2u + number) | (bits_at(block + 66u + part, i / 2u * 2u, 3u) << 8u);
  return levels_of_iq2(BOOK_IQ2_S + index, byte_at(block + 34u + number), i);
}
fn scales_iq2_s(block: u32, part: u32, half: u32) -> vec2<f32> {
  return steps(half_at(block) * 0.125, nibble_of(block + 74u, 2u * part + half));
}

fn codes_iq1_s(block: u32, part: u32, i: u32) -> vec4<f32> {
  let pair = pair_at(block + 34u + 2u * part);
  let upper = (pair >> (i / 2u * 3u)) & 7u;
  return levels_of_iq1(byte_at(block + 2u + 4u * part + i / 2u) | (upper << 8u), pair >> 15u, i);
}
fn scales_iq1_s(block: u32, part: u32, half: u32) -> vec2<f32> {
  return steps(half_at(block) * 0.125, (pair_at(block + 34u + 2u * part) >> 12u) & 7u);
}

// iq1_m: four pairs have four scales each, and above them a nibble of the block's float16.
fn codes_iq1_m(block: u32, part: u32, i: u32) -> vec4<f32> {
  let number = 4u * part + i / 2u;
  let upper = nibble_of(block + 32u, number);
  return levels_of_iq1(byte_at(block + number) | ((upper & 7u) << 8u), upper >> 3u, i);
}
fn scales_iq1_m(block: u32, part: u32, half: u32) -> vec2<f32> {
  let at = block + 48u;
  let low = bits_at(at + 1u, 4u, 15u) | (bits_at(at + 3u, 4u, 15u) << 4u);
  let high = bits_at(at + 5u, 4u, 15u) | (bits_at(at + 7u, 4u, 15u) << 4u);
  let s = (pair_at(at + part / 2u * 2u) >> ((2u * part + half) % 4u * 3u)) & 7u;
  return steps(f16_value(low | (high << 8u)) * 0.125, s);
}
