// out[slot] = a[slot / shared] @ b[ids[slot]]^T + bias[ids[slot]]: products of a row with the matrix of the
// expert that a token uses there, n rows of k values. A work-group takes two of the n columns at a time.
@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let pairs = (numbers.n + 1u) / 2u;
  for (var task = group.x; task < numbers.slots * pairs; task += groups.x) {
    let slot = task / pairs;
    let col = task % pairs * 2u;
    let row = ids_words[slot] * numbers.n + col;
    let start = slot / numbers.shared_by * numbers.k;
    var sums = vec2<f32>();
    for (var kk = lid; kk < numbers.k; kk += GROUP) {
      var weights = vec2<f32>();
      for (var n = 0u; n < 2u; n++) {  // a loop, since the unpacking code is long
        weights[n] = b_at((row + n) * numbers.k + kk);
      }
      sums += a_at(start + kk) * weights;
    }
    let first = group_sum(lid, sums.x) + bias_at(row);
    let second = group_sum(lid, sums.y) + bias_at(row + 1u);
    if (lid == 0u) {
      put_out(slot * numbers.n + col, first, second, numbers.n - col);
    }
  }
}
