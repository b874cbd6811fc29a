// out = a @ b^T * scale + bias for up to ROWS rows of a. A work-group multiplies by two rows of b, of floats
// or blocks, and reads them once.
const ROWS = 8u;

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  for (var col = 2u * group.x; col < numbers.n; col += 2u * groups.x) {
    var sums = array<vec2<f32>, ROWS>();
    for (var kk = lid; kk < numbers.k; kk += GROUP) {
      var weights = vec2<f32>();
      for (var n = 0u; n < 2u; n++) {  // a loop, since the unpacking code is long
        weights[n] = b_at((col + n) * numbers.k + kk);
      }
      for (var row = 0u; row < numbers.m; row++) {
        sums[row] += a_at(row * numbers.k + kk) * weights;
      }
    }
    for (var row = 0u; row < numbers.m; row++) {
      let first = group_sum(lid, sums[row].x) * numbers.scale + bias_at(col);
      let second = group_sum(lid, sums[row].y) * numbers.scale + bias_at(col + 1u);
      if (lid == 0u) {
        put_out(row * numbers.n + col, first, second, numbers.n - col);
      }
    }
  }
}
