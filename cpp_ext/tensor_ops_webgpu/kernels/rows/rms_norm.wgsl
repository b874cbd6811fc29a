// x / sqrt(mean(x^2) + eps) * weight over rows; one work-group per row, which is read twice.
@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  for (var row = group.x; row < numbers.rows; row += groups.x) {
    let start = row * numbers.d;
    var squares = Sum();
    for (var j = lid; j < numbers.d; j += GROUP) {
      let v = x_at(start + j);
      add(&squares, v * v);
    }
    let scale = 1.0 / sqrt(group_total(lid, squares) / f32(numbers.d) + numbers.eps);
    for (var j = 2u * lid; j < numbers.d; j += 2u * GROUP) {
      let first = x_at(start + j) * scale * weight_at(j);
      let second = x_at(start + j + 1u) * scale * weight_at(j + 1u);
      put_out(start + j, first, second, numbers.d - j);
    }
  }
}
