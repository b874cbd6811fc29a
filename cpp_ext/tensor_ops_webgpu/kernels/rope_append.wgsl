// A token's queries, keys and values lie one after the other in x, in rows of `d`. Writes the rotated queries
// to q, and the rotated keys and the values to a layer of a cache, whose heads are `head_step` apart. The first
// 2 r elements of a row are rotated in pairs, as in apply_rope.wgsl. With q_norm and k_norm, queries and keys are
// normalized before, each head by itself.
fn normed(row: u32, scale: f32, j: u32) -> f32 {
  let v = x_at(row * numbers.d + j);
  if (numbers.q_norm_type == 0u || row >= numbers.heads + numbers.kv_heads) {
    return v;
  }
  if (row < numbers.heads) {
    return v * scale * q_norm_at(j);
  }
  return v * scale * k_norm_at(j);
}

fn value(row: u32, scale: f32, j: u32) -> f32 {
  if (j >= 2u * numbers.r || row >= numbers.heads + numbers.kv_heads) {
    return normed(row, scale, j);
  }
  let apart = select(numbers.r, 1u, numbers.interleaved != 0u);
  let is_first = select(j < numbers.r, j % 2u == 0u, numbers.interleaved != 0u);
  let pair = select(j % numbers.r, j / 2u, numbers.interleaved != 0u);
  if (is_first) {
    return normed(row, scale, j) * cos_at(pair) - normed(row, scale, j + apart) * sin_at(pair);
  }
  return normed(row, scale, j) * cos_at(pair) + normed(row, scale, j - apart) * sin_at(pair);
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  for (var row = group.x; row < numbers.heads + 2u * numbers.kv_heads; row += groups.x) {
    var part = 0.0;
    for (var j = lid; j < numbers.d; j += GROUP) {
      part += x_at(row * numbers.d + j) * x_at(row * numbers.d + j);
    }
    let scale = inverseSqrt(group_sum(lid, part) / f32(numbers.d) + numbers.eps);
    for (var j = 2u * lid; j < numbers.d; j += 2u * GROUP) {
      let first = value(row, scale, j);
      let second = value(row, scale, j + 1u);
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
