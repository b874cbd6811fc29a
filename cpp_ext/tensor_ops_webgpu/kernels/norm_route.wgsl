// total = x + residual, normed = rms_norm(total), and logits = normed @ router^T + bias, with one more column,
// normed @ gate, if there is a gate: see gpu/norm_route.inc of the GPU kernels.
fn value(col: u32, j: u32) -> f32 {
  if (col < numbers.experts) {
    return router_at(col * numbers.d + j);
  }
  return gate_at(j);
}
fn bias_of(col: u32) -> f32 {
  if (col < numbers.experts) {
    return bias_at(col);
  }
  return 0.0;
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let columns = numbers.experts + select(0u, 1u, numbers.gate_type != 0u);
  let pairs = (columns + 1u) / 2u;
  for (var task = group.x; task < numbers.rows * pairs; task += groups.x) {
    let start = task / pairs * numbers.d;
    let col = task % pairs * 2u;
    var scale = 1.0;
    if (numbers.norm_type != 0u) {
      var squares = Sum();
      for (var j = lid; j < numbers.d; j += GROUP) {
        let v = x_at(start + j) + residual_at(start + j);
        add(&squares, v * v);
      }
      scale = 1.0 / sqrt(group_total(lid, squares) / f32(numbers.d) + numbers.eps);
    }
    var sums = vec2<f32>();
    for (var j = lid; j < numbers.d; j += GROUP) {
      var v = x_at(start + j);
      if (numbers.norm_type != 0u) {
        let total = v + residual_at(start + j);
        v = total * scale * norm_at(j);
        if (col == 0u) {
          total_words[start + j] = bitcast<u32>(total);
          normed_words[start + j] = bitcast<u32>(v);
        }
      }
      sums += v * vec2<f32>(value(col, j), value(col + 1u, j));
    }
    let left = group_sum(lid, sums.x) + bias_of(col);
    let right = group_sum(lid, sums.y) + bias_of(col + 1u);
    if (lid == 0u) {
      put_logits(task / pairs * columns + col, left, right, columns - col);
    }
  }
}
