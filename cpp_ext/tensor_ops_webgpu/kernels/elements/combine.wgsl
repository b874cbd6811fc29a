// out = x op y; without y, x op value, or the tanh of x; for arrays with any strides; out is dense. The numbers of the
// operations are those of ELEMENTWISE in airllm/backends/device/device_ops.py.
// A device's own tanh may overflow.
fn tanh_of(a: f32) -> f32 {
  let e = exponential(-2.0 * abs(a));
  return select((1.0 - e) / (1.0 + e), a, is_nan(a)) * select(1.0, -1.0, a < 0.0);
}

fn combined(a: f32, b: f32) -> f32 {
  switch numbers.op {
    case 0u: { return a + b; }
    case 1u: { return a - b; }
    case 2u: { return a * b; }
    case 3u: { return a / b; }
    case 4u: { return select(b, a, is_nan(a) || a < b); }
    case 5u: { return select(b, a, is_nan(a) || a > b); }
    default: { return tanh_of(a); }
  }
}

fn value(x: u32, y: u32) -> f32 {
  var other = numbers.value;
  if (numbers.y_type != 0u) {
    other = y_at(y);
  }
  return combined(x_at(x), other);
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  for (var row = group.x; row < numbers.rows; row += groups.x) {
    let x = numbers.x_from + x_start(row);
    let y = numbers.y_from + y_start(row);
    for (var j = 2u * lid; j < numbers.d; j += 2u * GROUP) {
      let first = value(x + j * numbers.x_step, y + j * numbers.y_step);
      let second = value(x + (j + 1u) * numbers.x_step, y + (j + 1u) * numbers.y_step);
      put_out(numbers.out_from + row * numbers.d + j, first, second, numbers.d - j);
    }
  }
}
