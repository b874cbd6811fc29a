// out0 = x + residual, out1 = rms_norm(out0), computed from the stored sum.
fn total(i: u32) -> f32 {
  return rounded(x_at(i) + residual_at(i), numbers.x_type);
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  for (var row = group.x; row < numbers.rows; row += groups.x) {
    let start = row * numbers.d;
    var squares = Sum();
    for (var j = lid; j < numbers.d; j += GROUP) {
      let v = total(start + j);
      add(&squares, v * v);
    }
    let scale = 1.0 / sqrt(group_total(lid, squares) / f32(numbers.d) + numbers.eps);
    for (var j = 2u * lid; j < numbers.d; j += 2u * GROUP) {
      let first = total(start + j);
      let second = total(start + j + 1u);
      put_out0(start + j, first, second, numbers.d - j);
      put_out1(start + j, first * scale * weight_at(j), second * scale * weight_at(j + 1u), numbers.d - j);
    }
  }
}
