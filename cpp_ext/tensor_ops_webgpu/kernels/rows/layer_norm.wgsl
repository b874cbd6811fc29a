// (x - mean) / sqrt(variance + eps) * weight + bias over rows. If values are far from zero, their variance
// needs the mean first. The mean is computed from the differences to the row's first value, so that the mean
// of a constant row is exact.
@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  for (var row = group.x; row < numbers.rows; row += groups.x) {
    let start = row * numbers.d;
    let origin = x_at(start);
    var sum = Sum();
    for (var j = lid; j < numbers.d; j += GROUP) {
      add(&sum, x_at(start + j) - origin);
    }
    let shift = group_total(lid, sum) / f32(numbers.d);
    var squares = Sum();
    for (var j = lid; j < numbers.d; j += GROUP) {
      let distance = x_at(start + j) - origin - shift;
      add(&squares, distance * distance);
    }
    let scale = 1.0 / sqrt(group_total(lid, squares) / f32(numbers.d) + numbers.eps);
    for (var j = 2u * lid; j < numbers.d; j += 2u * GROUP) {
      let first = (x_at(start + j) - origin - shift) * scale * weight_at(j) + bias_at(j);
      let second = (x_at(start + j + 1u) - origin - shift) * scale * weight_at(j + 1u) + bias_at(j + 1u);
      put_out(start + j, first, second, numbers.d - j);
    }
  }
}
