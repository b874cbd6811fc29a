// total = x by the norm `post` + residual, normed = rms_norm(total), with more norms of it, and logits = normed @ router^T + bias, with one more column,
// normed @ gate, if there is a gate: see gpu/experts/norm_route.inc of the GPU kernels.
fn value(col: u32, j: u32) -> f32 {
  if (col < numbers.experts) {
    return router_at(col * numbers.d + j);
  }
  return gate_at(j);
}
fn total_of(start: u32, j: u32, of_x: f32) -> f32 {
  let v = x_at(start + j);
  if (numbers.post_type == 0u) {
    return v + residual_at(start + j);
  }
  return v * of_x * post_at(j) + residual_at(start + j);
}
fn inverse_deviation(lid: u32, squares: Sum) -> f32 {
  return 1.0 / sqrt(group_total(lid, squares) / f32(numbers.d) + numbers.eps);
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
    var of_x = 1.0;
    if (numbers.post_type != 0u) {
      var squares = Sum();
      for (var j = lid; j < numbers.d; j += GROUP) {
        add(&squares, x_at(start + j) * x_at(start + j));
      }
      of_x = inverse_deviation(lid, squares);
    }
    var scale = 1.0;
    if (numbers.norm_type != 0u) {
      var squares = Sum();
      for (var j = lid; j < numbers.d; j += GROUP) {
        let v = total_of(start, j, of_x);
        add(&squares, v * v);
      }
      scale = inverse_deviation(lid, squares);
    }
    var sums = vec2<f32>();
    for (var j = lid; j < numbers.d; j += GROUP) {
      var v = x_at(start + j);
      if (numbers.norm_type != 0u) {
        let total = total_of(start, j, of_x);
        v = total * scale * norm_at(j);
        if (col == 0u) {
          total_words[start + j] = bitcast<u32>(total);
          for (var n = 0u; n < numbers.norms; n++) {
            normed_words[n * numbers.rows * numbers.d + start + j] =
              bitcast<u32>(total * scale * norm_at(n * numbers.d + j));
          }
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
