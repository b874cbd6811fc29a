// The product of a block of 32 values, which begins at an even byte of ARRAY, with 32 values of a from `at`
// on: a function for each format, by the name of the format. block_parts.wgsl has the other formats.
fn word_at(at: u32) -> u32 {
  if ((at & 2u) == 0u) {
    return ARRAY_words[at / 4u];
  }
  return (ARRAY_words[at / 4u] >> 16u) | (ARRAY_words[at / 4u + 1u] << 16u);
}
fn four_bytes(word: u32) -> vec4<f32> {
  return vec4<f32>((vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u));
}
fn low_bits(word: u32) -> vec4<f32> {
  return four_bytes(word & 0x0f0f0f0fu);
}

fn signed_bytes(bytes: u32, at: u32) -> f32 {
  return dot(four_bytes(word_at(bytes) ^ 0x80808080u) - 128.0, a_quad(at));
}
fn product_q8_0(block: u32, at: u32) -> f32 {
  let first = block + 2u;
  let low = (signed_bytes(first, at) + signed_bytes(first + 4u, at + 4u))
          + (signed_bytes(first + 8u, at + 8u) + signed_bytes(first + 12u, at + 12u));
  let high = (signed_bytes(first + 16u, at + 16u) + signed_bytes(first + 20u, at + 20u))
           + (signed_bytes(first + 24u, at + 24u) + signed_bytes(first + 28u, at + 28u));
  return half_value(word_at(block), 0u, F16) * (low + high);
}

// Eight values of four bits, in the low and the high halves of a word's bytes, from which `less` is taken.
fn four_bits_of(bytes: u32, less: f32, at: u32) -> f32 {
  let word = word_at(bytes);
  return dot(low_bits(word) - less, a_quad(at)) + dot(low_bits(word >> 4u) - less, a_quad(at + 16u));
}
fn four_bits_product(first: u32, less: f32, at: u32) -> f32 {
  return (four_bits_of(first, less, at) + four_bits_of(first + 4u, less, at + 4u))
       + (four_bits_of(first + 8u, less, at + 8u) + four_bits_of(first + 12u, less, at + 12u));
}
fn product_q4_0(block: u32, at: u32) -> f32 {
  return half_value(word_at(block), 0u, F16) * four_bits_product(block + 2u, 8.0, at);
}

fn total(at: u32) -> vec4<f32> {
  return a_quad(at) + a_quad(at + 4u);
}
fn product_q4_1(block: u32, at: u32) -> f32 {
  let ends = word_at(block);
  let totals = (total(at) + total(at + 8u)) + (total(at + 16u) + total(at + 24u));
  return half_value(ends, 0u, F16) * four_bits_product(block + 4u, 0.0, at)
       + half_value(ends, 1u, F16) * dot(totals, vec4<f32>(1.0));
}
