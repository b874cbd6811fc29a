// out = a @ [b; shared]^T + bias for one row of a, or, with an activation, activation(a @ b^T) * (a @ shared^T), or
// without `shared` that of `factors`, or of ones: see linear_two of the GPU kernels (common/linear_two.inc). LANES invocations take a row of a matrix together.
fn value(lane: u32, col: u32) -> f32 {
  let sums = column_sums(lane);
  var up = sums.y;
  if (numbers.shared_type == 0u) {
    up = select(1.0, factors_at(col), numbers.factors_type != 0u);
  }
  return gated_value(numbers.activation, sums.x + bias_at(col), up, 0.0, 0.0);
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let units = numbers.k / 32u;
  let of_first = (numbers.n + COLUMNS - 1u) / COLUMNS;
  let of_second = select((numbers.more + COLUMNS - 1u) / COLUMNS, 0u, numbers.activation != 0u);
  for (var task = group.x; task < of_first + of_second; task += groups.x) {
    let is_second = task >= of_first;
    let width = select(numbers.n, numbers.more, is_second);
    let first = select(task, task - of_first, is_second) * COLUMNS;
    let col = first + lid / LANES;
    var sum = vec2<f32>();
    if (col < width) {
      for (var unit = lid % LANES; unit < units; unit += LANES) {
        if (is_second) {
          sum.x += product_shared(col * units + unit, unit * 32u);
        } else {
          sum.x += product(col * units + unit, unit * 32u);
          if (numbers.activation != 0u && numbers.shared_type != 0u) {
            sum.y += product_shared(col * units + unit, unit * 32u);
          }
        }
      }
    }
    workgroupBarrier();
    parts[lid] = sum;
    workgroupBarrier();
    let pair = first + 2u * lid;
    if (lid < COLUMNS / 2u && pair < width) {
      let out = pair + select(0u, numbers.n, is_second);
      let second = select(out, out + 1u, pair + 1u < width);
      put_out(out, value(2u * lid, out), value(2u * lid + 1u, second), width - pair);
    }
  }
}
