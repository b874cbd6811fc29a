// 32 values of a block of ARRAY, read as words. For each format, by its name: codes_ gives the integers of
// values 4 i to 4 i + 3 of `part`, the 32 values; scales_ the scale and the offset of the part's first or
// second half. A value is scale * code + offset, each operation rounded. airllm/formats/ defines the blocks;
// codebook_parts.wgsl has those of vectors.
fn bytes_at(at: u32) -> u32 {  // four, from any address
  let shift = at % 4u * 8u;
  let low = ARRAY_words[at / 4u] >> shift;
  if (shift == 0u) {
    return low;
  }
  return low | (ARRAY_words[at / 4u + 1u] << (32u - shift));
}
fn byte_at(at: u32) -> u32 {
  return (ARRAY_words[at / 4u] >> (at % 4u * 8u)) & 0xffu;
}
fn half_at(at: u32) -> f32 {
  return half_value(ARRAY_words[at / 4u], at / 2u, F16);
}
fn signed_byte_at(at: u32) -> f32 {
  return f32(i32(byte_at(at) ^ 128u) - 128);
}
// -0.0 changes no sum, not even that of -0.0.
fn without_offset(scale: f32) -> vec2<f32> {
  return vec2<f32>(scale, -0.0);
}
fn fields(word: u32, mask: u32) -> vec4<u32> {
  return (vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(mask);
}

// ---- blocks of 32 ----

fn codes_q8_0(block: u32, part: u32, i: u32) -> vec4<f32> {
  return vec4<f32>(fields(bytes_at(block + 2u + 4u * i) ^ 0x80808080u, 255u)) - 128.0;
}
fn scales_q8_0(block: u32, part: u32, half: u32) -> vec2<f32> {
  return without_offset(half_at(block));
}

// Four bits of values 4 i to 4 i + 3: the second half is in the upper bits of the bytes of the first.
fn nibbles(at: u32, i: u32) -> vec4<u32> {
  return fields(bytes_at(at + i % 4u * 4u) >> (i / 4u * 4u), 15u);
}
fn fifth_bits(at: u32, i: u32) -> vec4<u32> {
  let word = bytes_at(at) >> (4u * i);
  return ((vec4<u32>(word) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u)) << vec4<u32>(4u);
}
fn codes_q4_0(block: u32, part: u32, i: u32) -> vec4<f32> {
  return vec4<f32>(nibbles(block + 2u, i)) - 8.0;
}
fn scales_q4_0(block: u32, part: u32, half: u32) -> vec2<f32> {
  return without_offset(half_at(block));
}
fn codes_q4_1(block: u32, part: u32, i: u32) -> vec4<f32> {
  return vec4<f32>(nibbles(block + 4u, i));
}
fn scales_q4_1(block: u32, part: u32, half: u32) -> vec2<f32> {
  return vec2<f32>(half_at(block), half_at(block + 2u));
}
fn codes_q5_0(block: u32, part: u32, i: u32) -> vec4<f32> {
  return vec4<f32>(nibbles(block + 6u, i) | fifth_bits(block + 2u, i)) - 16.0;
}
fn scales_q5_0(block: u32, part: u32, half: u32) -> vec2<f32> {
  return without_offset(half_at(block));
}
fn codes_q5_1(block: u32, part: u32, i: u32) -> vec4<f32> {
  return vec4<f32>(nibbles(block + 8u, i) | fifth_bits(block + 4u, i));
}
fn scales_q5_1(block: u32, part: u32, half: u32) -> vec2<f32> {
  return vec2<f32>(half_at(block), half_at(block + 2u));
}

// Signed bytes of a table of 16, in four words, one after the other in `low` and `high`.
fn looked_up(low: vec2<u32>, high: vec2<u32>, q: vec4<u32>) -> vec4<f32> {
  let in_high = q >= vec4<u32>(8u);
  let first = select(vec4<u32>(low.x), vec4<u32>(high.x), in_high);
  let second = select(vec4<u32>(low.y), vec4<u32>(high.y), in_high);
  let word = select(first, second, (q & vec4<u32>(4u)) != vec4<u32>(0u));
  let byte = (word >> ((q & vec4<u32>(3u)) * 8u)) & vec4<u32>(255u);
  return vec4<f32>(vec4<i32>(byte ^ vec4<u32>(128u)) - 128);
}
fn values_of_iq4(q: vec4<u32>) -> vec4<f32> {
  return looked_up(vec2<u32>(0xbfad9881u, 0xf6eaddcfu), vec2<u32>(0x26190d01u, 0x71594535u), q);
}
fn codes_iq4_nl(block: u32, part: u32, i: u32) -> vec4<f32> {
  return values_of_iq4(nibbles(block + 2u, i));
}
fn scales_iq4_nl(block: u32, part: u32, half: u32) -> vec2<f32> {
  return without_offset(half_at(block));
}
fn codes_mxfp4(block: u32, part: u32, i: u32) -> vec4<f32> {
  let q = nibbles(block + 1u, i);
  return looked_up(vec2<u32>(0x03020100u, 0x0c080604u), vec2<u32>(0xfdfeff00u, 0xf4f8fafcu), q);
}
// Half of 2^(e - 127), since FP4's values are doubled.
fn scales_mxfp4(block: u32, part: u32, half: u32) -> vec2<f32> {
  let e = byte_at(block);
  return without_offset(bitcast<f32>(select((e - 1u) << 23u, (e + 1u) << 21u, e < 2u)));
}

// ---- parts of blocks of 256 ----

fn two_bits(at: u32, part: u32, i: u32) -> vec4<u32> {
  return fields(bytes_at(at + part / 4u * 32u + 4u * i) >> (part % 4u * 2u), 3u);
}
fn codes_q2_k(block: u32, part: u32, i: u32) -> vec4<f32> {
  return vec4<f32>(two_bits(block + 16u, part, i));
}
fn scales_q2_k(block: u32, part: u32, half: u32) -> vec2<f32> {
  let scales = byte_at(block + 2u * part + half);
  return vec2<f32>(half_at(block + 80u) * f32(scales & 15u), -half_at(block + 82u) * f32(scales >> 4u));
}
fn codes_q3_k(block: u32, part: u32, i: u32) -> vec4<f32> {
  let third = fields(bytes_at(block + 4u * i) >> part, 1u) << vec4<u32>(2u);
  return vec4<f32>(two_bits(block + 32u, part, i) | third) - 4.0;
}
fn scales_q3_k(block: u32, part: u32, half: u32) -> vec2<f32> {
  let sub = 2u * part + half;
  let low = (byte_at(block + 96u + sub % 8u) >> (sub / 8u * 4u)) & 15u;
  let high = (byte_at(block + 104u + sub % 4u) >> (sub / 4u * 2u)) & 3u;
  return without_offset(half_at(block + 108u) * (f32(low | (high << 4u)) - 32.0));
}

// The six-bit scales and offsets of q4_k and q5_k: those of the last four parts are split.
fn scales_of_32(block: u32, part: u32) -> vec2<f32> {
  let at = block + 4u;
  let ends = vec2<f32>(half_at(block), -half_at(block + 2u));
  if (part < 4u) {
    return ends * vec2<f32>(f32(byte_at(at + part) & 63u), f32(byte_at(at + part + 4u) & 63u));
  }
  let low = byte_at(at + 4u + part);
  let scale = (low & 15u) | ((byte_at(at + part - 4u) >> 6u) << 4u);
  let offset = (low >> 4u) | ((byte_at(at + part) >> 6u) << 4u);
  return ends * vec2<f32>(f32(scale), f32(offset));
}
fn four_of_64(at: u32, part: u32, i: u32) -> vec4<u32> {
  return fields(bytes_at(at + part / 2u * 32u + 4u * i) >> (part % 2u * 4u), 15u);
}
fn codes_q4_k(block: u32, part: u32, i: u32) -> vec4<f32> {
  return vec4<f32>(four_of_64(block + 16u, part, i));
}
fn scales_q4_k(block: u32, part: u32, half: u32) -> vec2<f32> {
  return scales_of_32(block, part);
}
fn codes_q5_k(block: u32, part: u32, i: u32) -> vec4<f32> {
  let fifth = fields(bytes_at(block + 16u + 4u * i) >> part, 1u) << vec4<u32>(4u);
  return vec4<f32>(four_of_64(block + 48u, part, i) | fifth);
}
fn scales_q5_k(block: u32, part: u32, half: u32) -> vec2<f32> {
  return scales_of_32(block, part);
}
fn codes_q6_k(block: u32, part: u32, i: u32) -> vec4<f32> {
  let low = bytes_at(block + part / 4u * 64u + part % 2u * 32u + 4u * i) >> (part % 4u / 2u * 4u);
  let high = two_bits(block + 128u, part, i) << vec4<u32>(4u);
  return vec4<f32>(fields(low, 15u) | high) - 32.0;
}
fn scales_q6_k(block: u32, part: u32, half: u32) -> vec2<f32> {
  return without_offset(half_at(block + 208u) * signed_byte_at(block + 192u + 2u * part + half));
}
fn codes_iq4_xs(block: u32, part: u32, i: u32) -> vec4<f32> {
  return values_of_iq4(nibbles(block + 8u + part * 16u, i));
}
fn scales_iq4_xs(block: u32, part: u32, half: u32) -> vec2<f32> {
  let low = (byte_at(block + 4u + part / 2u) >> (part % 2u * 4u)) & 15u;
  let high = (byte_at(block + 2u + part / 4u) >> (part % 4u * 2u)) & 3u;
  return without_offset(half_at(block) * (f32(low | (high << 4u)) - 32.0));
}
fn codes_tq2_0(block: u32, part: u32, i: u32) -> vec4<f32> {
  return vec4<f32>(two_bits(block, part, i)) - 1.0;
}
fn scales_tq2_0(block: u32, part: u32, half: u32) -> vec2<f32> {
  return without_offset(half_at(block + 64u));
}

// A byte is a fraction of 256 with five ternary digits: the digit in front of it, multiplied by a power of 3. 32
// bytes have the first 160 values, 16 bytes the next 80. Four bytes, with four digits each, have the last 16.
fn codes_tq1_0(block: u32, part: u32, i: u32) -> vec4<f32> {
  var at = block + 4u * i;
  var number = part;
  if (part >= 5u) {
    at = block + 32u + 4u * (i % 4u);
    number = 2u * (part - 5u) + i / 4u;
  }
  if (number == 5u) {
    at = block + 48u;
    number = i % 4u;
  }
  var powers = array<u32, 5>(1u, 3u, 9u, 27u, 81u);
  let moved = (fields(bytes_at(at), 255u) * powers[number]) & vec4<u32>(255u);
  return vec4<f32>((moved * 3u) >> vec4<u32>(8u)) - 1.0;
}
fn scales_tq1_0(block: u32, part: u32, half: u32) -> vec2<f32> {
  return without_offset(half_at(block + 52u));
}
