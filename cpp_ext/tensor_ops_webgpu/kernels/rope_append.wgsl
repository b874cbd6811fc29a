// A token's queries, keys and values lie one after the other in x, in rows of `d`. Writes the rotated queries
// to q, and the rotated keys and the values to a layer of a cache, whose heads are `head_step` apart. The first
// 2 r elements of a row are rotated in pairs, as in apply_rope.wgsl.
fn value(row: u32, j: u32) -> f32 {
  let i = row * numbers.d + j;
  if (j >= 2u * numbers.r || row >= numbers.heads + numbers.kv_heads) {
    return x_at(i);
  }
  let apart = select(numbers.r, 1u, numbers.interleaved != 0u);
  let is_first = select(j < numbers.r, j % 2u == 0u, numbers.interleaved != 0u);
  let pair = select(j % numbers.r, j / 2u, numbers.interleaved != 0u);
  if (is_first) {
    return x_at(i) * cos_at(pair) - x_at(i + apart) * sin_at(pair);
  }
  return x_at(i) * cos_at(pair) + x_at(i - apart) * sin_at(pair);
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  for (var row = group.x; row < numbers.heads + 2u * numbers.kv_heads; row += groups.x) {
    for (var j = 2u * lid; j < numbers.d; j += 2u * GROUP) {
      let first = value(row, j);
      let second = value(row, j + 1u);
      if (row < numbers.heads) {
        put_q(row * numbers.d + j, first, second, numbers.d - j);
      } else {
        let head = row - numbers.heads;
        if (head < numbers.kv_heads) {
          put_cache(numbers.k_from + head * numbers.head_step + j, first, second, numbers.d - j);
        } else {
          let to = numbers.v_from + (head - numbers.kv_heads) * numbers.head_step;
          put_cache(to + j, first, second, numbers.d - j);
        }
      }
    }
  }
}
