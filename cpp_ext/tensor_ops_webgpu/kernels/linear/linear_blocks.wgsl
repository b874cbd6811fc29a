// out = a @ b^T * scale + bias for few rows of a, of float32, where b has blocks that are read as words. LANES
// invocations take a row of b together, 32 values at a time. With an activation, b has
// the n rows of a gate and then those that it gates: out = activation(a @ gate^T) * (a @ rest^T).
fn gated(sums: vec2<f32>) -> f32 {
  return gated_value(numbers.activation, sums.x, sums.y, 0.0, 0.0);
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let units = numbers.k / 32u;
  for (var first = COLUMNS * group.x; first < numbers.n; first += COLUMNS * groups.x) {
    let col = first + lid / LANES;
    for (var row = 0u; row < numbers.m; row++) {
      var sum = vec2<f32>();
      if (col < numbers.n) {
        for (var unit = lid % LANES; unit < units; unit += LANES) {
          let at = row * numbers.k + unit * 32u;
          sum.x += product(col * units + unit, at);
          if (numbers.activation != 0u) {
            sum.y += product((numbers.n + col) * units + unit, at);
          }
        }
      }
      workgroupBarrier();
      parts[lid] = sum;
      workgroupBarrier();
      if (lid < COLUMNS / 2u) {
        var pair = vec2<f32>(gated(column_sums(2u * lid)), gated(column_sums(2u * lid + 1u)));
        let out = first + 2u * lid;
        if (out < numbers.n) {
          pair = pair * numbers.scale + vec2<f32>(bias_at(out), bias_at(out + 1u));
          put_out(row * numbers.n + out, pair.x, pair.y, numbers.n - out);
        }
      }
    }
  }
}
