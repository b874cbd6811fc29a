// Codes of q8_0.

// The code of a value, rounded half away from zero, as in airllm/formats/blocks_32.py.
fn code_of(v: f32, inverse: f32) -> u32 {
  let size = min(abs(v * inverse), 127.0);
  let whole = floor(size);
  let code = i32(whole) + i32(size - whole >= 0.5);
  return u32(select(code, -code, v < 0.0)) & 0xffu;
}

// The codes of two values that are neighbours, as a half of a word.
fn code_pair(first: f32, second: f32, scale: f32) -> u32 {
  let inverse = select(1.0 / scale, 0.0, scale == 0.0);
  return code_of(first, inverse) | (code_of(second, inverse) << 8u);
}
