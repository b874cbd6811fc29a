// Reads and writes arrays as words of 32 bits; the dtype is a number passed to each launch. Arithmetic is in
// f32. float16 and bfloat16 are converted by bit operations, since the built-in packing may round in either
// direction, and not every device supports f16.
const F32 = 1u;
const F16 = 2u;
const BF16 = 3u;
const BOOL = 4u;
const I32 = 5u;
const I64 = 6u;

const LOWEST = -3.4028234663852886e38;

// Written as a constant, these bits would be an error in WGSL.
fn negative_infinity() -> f32 {
  var bits = 0xff800000u;
  return bitcast<f32>(bits);
}
fn not_a_number() -> f32 {
  var bits = 0x7fc00000u;
  return bitcast<f32>(bits);
}

// Compilers may assume that comparisons never see NaN, and min, max and clamp may ignore it.
fn is_nan(v: f32) -> bool {
  return (bitcast<u32>(v) & 0x7fffffffu) > 0x7f800000u;
}

fn f16_value(half: u32) -> f32 {
  let sign = (half & 0x8000u) << 16u;
  let size = half & 0x7fffu;
  if (size >= 0x7c00u) {
    return bitcast<f32>(sign | 0x7f800000u | ((size & 0x3ffu) << 13u));
  }
  if (size < 0x400u) {  // steps of 2^-24
    return bitcast<f32>(sign | bitcast<u32>(f32(size) * 5.9604644775390625e-8));
  }
  return bitcast<f32>(sign | ((size << 13u) + 0x38000000u));
}

// Rounds to nearest, ties to even; a NaN stays a NaN.
fn f16_bits(v: f32) -> u32 {
  let bits = bitcast<u32>(v);
  let sign = (bits >> 16u) & 0x8000u;
  let size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) {
    return sign | 0x7e00u;
  }
  if (size >= 0x477ff000u) {  // closer to 2^16 than to the largest float16
    return sign | 0x7c00u;
  }
  if (size < 0x38800000u) {
    return sign | u32(round(bitcast<f32>(size) * 16777216.0));
  }
  return sign | ((size - 0x38000000u + 0xfffu + ((size >> 13u) & 1u)) >> 13u);
}

fn bf16_bits(v: f32) -> u32 {
  let bits = bitcast<u32>(v);
  if (is_nan(v)) {
    return (bits >> 16u) | 0x40u;
  }
  return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}

// The half of a word that holds element i, as f32.
fn half_value(word: u32, i: u32, dtype: u32) -> f32 {
  let half = (word >> ((i & 1u) * 16u)) & 0xffffu;
  if (dtype == F16) {
    return f16_value(half);
  }
  return bitcast<f32>(half << 16u);
}

fn half_bits(v: f32, dtype: u32) -> u32 {
  if (dtype == F16) {
    return f16_bits(v);
  }
  return bf16_bits(v);
}

// The value after a store and a load.
fn rounded(v: f32, dtype: u32) -> f32 {
  if (dtype == F32) {
    return v;
  }
  return half_value(half_bits(v, dtype), 0u, dtype);
}

// What a bool mask adds to a score.
fn bool_term(word: u32, i: u32) -> f32 {
  if (((word >> ((i & 3u) * 8u)) & 0xffu) != 0u) {
    return 0.0;
  }
  return negative_infinity();
}

// A masked score. A hidden score becomes -inf, whatever it was, even NaN or an infinity.
fn masked(score: f32, term: f32) -> f32 {
  if (bitcast<u32>(term) == 0xff800000u) {
    return term;
  }
  return score + term;
}
