// A function for each of ggml's block formats (airllm/formats/ defines them): returns value i of the block
// that begins at a byte of ARRAY. kernel_text.py generates the calls from the sizes in that table. Products
// and sums are rounded separately, as in the definition.
fn byte_at(at: u32) -> u32 {
  return (ARRAY_words[at / 4u] >> (at % 4u * 8u)) & 0xffu;
}
fn scale_at(at: u32) -> f32 {  // float16, at an even address
  return half_value(ARRAY_words[at / 4u], at / 2u, F16);
}
fn signed(byte: u32) -> f32 {
  return f32(i32(byte ^ 128u) - 128);
}

// ---- blocks of 32: four bits of value i in the low or the high half of byte i % 16 ----

fn four_bits(at: u32, i: u32) -> u32 {
  return (byte_at(at + i % 16u) >> (i / 16u * 4u)) & 15u;
}
fn fifth_bit(at: u32, i: u32) -> u32 {
  return ((byte_at(at + i / 8u) >> (i % 8u)) & 1u) << 4u;
}
fn q8_0(block: u32, i: u32) -> f32 {
  return scale_at(block) * signed(byte_at(block + 2u + i));
}
fn q4_0(block: u32, i: u32) -> f32 {
  return scale_at(block) * (f32(four_bits(block + 2u, i)) - 8.0);
}
fn q4_1(block: u32, i: u32) -> f32 {
  return scale_at(block) * f32(four_bits(block + 4u, i)) + scale_at(block + 2u);
}
fn q5_0(block: u32, i: u32) -> f32 {
  return scale_at(block) * (f32(four_bits(block + 6u, i) | fifth_bit(block + 2u, i)) - 16.0);
}
fn q5_1(block: u32, i: u32) -> f32 {
  return scale_at(block) * f32(four_bits(block + 8u, i) | fifth_bit(block + 4u, i)) + scale_at(block + 2u);
}
fn iq4_nl_value(q: u32) -> f32 {
  var values = array<u32, 4>(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);  // 16 bytes
  return signed((values[q / 4u] >> (q % 4u * 8u)) & 0xffu);
}
fn iq4_nl(block: u32, i: u32) -> f32 {
  return scale_at(block) * iq4_nl_value(four_bits(block + 2u, i));
}

// The scale of mxfp4 is half of 2^(e - 127), since FP4's values are doubled.
fn mxfp4(block: u32, i: u32) -> f32 {
  var values = array<u32, 4>(0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu);  // 16 bytes
  let q = four_bits(block + 1u, i);
  let e = byte_at(block);
  let scale = bitcast<f32>(select((e - 1u) << 23u, (e + 1u) << 21u, e < 2u));
  return scale * signed((values[q / 4u] >> (q % 4u * 8u)) & 0xffu);
}

// ---- blocks of 256, whose sub-blocks of 16 or 32 have their own scales ----

// Two bits: 32 bytes hold 128 values.
fn two_bits(at: u32, i: u32) -> u32 {
  return (byte_at(at + i / 128u * 32u + i % 32u) >> (i % 128u / 32u * 2u)) & 3u;
}
fn q2_k(block: u32, i: u32) -> f32 {
  let scales = byte_at(block + i / 16u);
  let scale = scale_at(block + 80u) * f32(scales & 15u);
  let least = scale_at(block + 82u) * f32(scales >> 4u);
  return scale * f32(two_bits(block + 16u, i)) - least;
}
fn q3_k(block: u32, i: u32) -> f32 {
  let sub = i / 16u;
  let low = (byte_at(block + 96u + sub % 8u) >> (sub / 8u * 4u)) & 15u;
  let high = (byte_at(block + 104u + sub % 4u) >> (sub / 4u * 2u)) & 3u;
  let scale = scale_at(block + 108u) * (f32(low | (high << 4u)) - 32.0);
  let third = (byte_at(block + i % 32u) >> (i / 32u)) & 1u;
  return scale * (f32(two_bits(block + 32u, i) | (third << 2u)) - 4.0);
}

// q4_k and q5_k: eight six-bit scales and offsets; those of the last four are split between two places.
fn six_bits(at: u32, sub: u32, is_offset: u32) -> f32 {
  if (sub < 4u) {
    return f32(byte_at(at + is_offset * 4u + sub) & 63u);
  }
  let low = (byte_at(at + 4u + sub) >> (is_offset * 4u)) & 15u;
  return f32(low | ((byte_at(at + is_offset * 4u + sub - 4u) >> 6u) << 4u));
}
fn scaled_of_32(block: u32, i: u32, q: u32) -> f32 {
  let scale = scale_at(block) * six_bits(block + 4u, i / 32u, 0u);
  let least = scale_at(block + 2u) * six_bits(block + 4u, i / 32u, 1u);
  return scale * f32(q) - least;
}
fn four_of_64(at: u32, i: u32) -> u32 {
  return (byte_at(at + i / 64u * 32u + i % 32u) >> (i % 64u / 32u * 4u)) & 15u;
}
fn q4_k(block: u32, i: u32) -> f32 {
  return scaled_of_32(block, i, four_of_64(block + 16u, i));
}
fn q5_k(block: u32, i: u32) -> f32 {
  let fifth = (byte_at(block + 16u + i % 32u) >> (i / 32u)) & 1u;
  return scaled_of_32(block, i, four_of_64(block + 48u, i) | (fifth << 4u));
}

// q6_k: 64 bytes hold the low four bits of 128 values, 32 other bytes their high two.
fn q6_k(block: u32, i: u32) -> f32 {
  let low = (byte_at(block + i / 128u * 64u + i % 64u) >> (i % 128u / 64u * 4u)) & 15u;
  let high = two_bits(block + 128u, i);
  let scale = scale_at(block + 208u) * signed(byte_at(block + 192u + i / 16u));
  return scale * (f32(low | (high << 4u)) - 32.0);
}

// iq4_xs: the values of iq4_nl; six-bit scales, whose upper two bits are in a word of their own.
fn iq4_xs(block: u32, i: u32) -> f32 {
  let sub = i / 32u;
  let low = (byte_at(block + 4u + sub / 2u) >> (sub % 2u * 4u)) & 15u;
  let high = (byte_at(block + 2u + sub / 4u) >> (sub % 4u * 2u)) & 3u;
  let scale = scale_at(block) * (f32(low | (high << 4u)) - 32.0);
  return scale * iq4_nl_value(four_bits(block + 8u + sub * 16u, i % 32u));
}

fn tq2_0(block: u32, i: u32) -> f32 {
  return scale_at(block + 64u) * (f32(two_bits(block, i)) - 1.0);
}

// Digit `number` of a byte, which is a fraction of 256 with five ternary digits.
fn ternary_digit(byte: u32, number: u32) -> f32 {
  var powers = array<u32, 5>(1u, 3u, 9u, 27u, 81u);
  return f32((((byte * powers[number]) & 0xffu) * 3u) >> 8u);
}
// 32 bytes have the first 160 values, 16 bytes the next 80. Four bytes, with four digits each, have the last 16.
fn digit_of_block(at: u32, i: u32) -> f32 {
  if (i < 160u) {
    return ternary_digit(byte_at(at + i % 32u), i / 32u);
  }
  if (i < 240u) {
    return ternary_digit(byte_at(at + 32u + i % 16u), (i - 160u) / 16u);
  }
  return ternary_digit(byte_at(at + 48u + i % 4u), (i - 240u) / 4u);
}
fn tq1_0(block: u32, i: u32) -> f32 {
  return scale_at(block + 52u) * (digit_of_block(block, i) - 1.0);
}
