// Rotates the first 2 r elements of each row of x in pairs, (i, i + r) or, if interleaved, (2 i, 2 i + 1),
// and copies the rest. cos and sin have rows of r, whose leading axes are broadcast.
fn value(i: u32) -> f32 {
  let j = i % numbers.d;
  if (j >= 2u * numbers.r) {
    return x_at(i);
  }
  let apart = select(numbers.r, 1u, numbers.interleaved != 0u);
  let is_first = select(j < numbers.r, j % 2u == 0u, numbers.interleaved != 0u);
  let pair = select(j % numbers.r, j / 2u, numbers.interleaved != 0u);
  let angle = cos_start(i / numbers.d) + pair;
  if (is_first) {
    return x_at(i) * cos_at(angle) - x_at(i + apart) * sin_at(angle);
  }
  return x_at(i) * cos_at(angle) + x_at(i - apart) * sin_at(angle);
}

@compute @workgroup_size(GROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  for (var i = 2u * id.x; i < numbers.count; i += 2u * GROUP * groups.x) {
    put_out(i, value(i), value(i + 1u), numbers.count - i);
  }
}
