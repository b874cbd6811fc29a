// out[slot] = a[slot / shared_by] @ b[ids[slot]]^T + bias[ids[slot]]: products of a row with the matrix of the
// expert that a token uses there, n rows of k values. With an activation, an expert has n more rows, which the
// first ones gate. Slots of experts whose matrices are in another array are left as they are. A work-group
// takes two of the n columns at a time. `k` is 0 for such slots.
fn sums_of(lid: u32, start: u32, row: u32, k: u32, own_bias: u32) -> vec2<f32> {
  var sums = vec2<f32>();
  for (var kk = lid; kk < k; kk += GROUP) {
    sums += a_at(start + kk) * vec2<f32>(b_at(row * numbers.k + kk), b_at((row + 1u) * numbers.k + kk));
  }
  let first = group_sum(lid, sums.x) + bias_at(own_bias);
  return vec2<f32>(first, group_sum(lid, sums.y) + bias_at(own_bias + 1u));
}

fn gated(gate: f32, up: f32) -> f32 {
  return gated_value(numbers.activation, gate, up, numbers.limit, numbers.alpha);
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let pairs = (numbers.n + 1u) / 2u;
  for (var task = group.x; task < numbers.slots * pairs; task += groups.x) {
    let slot = task / pairs;
    let col = task % pairs * 2u;
    let expert = expert_of(slot);
    let place = place_of(expert);
    let row = place * numbers.rows + col;
    let own_bias = expert * numbers.rows + col;
    let start = slot / numbers.shared_by * numbers.k;
    let k = select(numbers.k, 0u, place == ELSEWHERE);
    let gates = sums_of(lid, start, row, k, own_bias);
    var ups = vec2<f32>();
    if (numbers.activation != 0u) {
      ups = sums_of(lid, start, row + numbers.n, k, own_bias + numbers.n);
    }
    if (lid == 0u && place != ELSEWHERE) {
      let first = gated(gates.x, ups.x);
      put_out(slot * numbers.n + col, first, gated(gates.y, ups.y), numbers.n - col);
    }
  }
}
