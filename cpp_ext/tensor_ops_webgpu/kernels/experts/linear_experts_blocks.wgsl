// linear_experts.wgsl for b of blocks that are read as words. LANES invocations take a row of b together,
// 32 values at a time.
// What column `lane` of this group gives, whose first bias is at `at`.
fn column(lane: u32, at: u32) -> f32 {
  let sum = column_sums(lane);
  let up = sum.y + bias_at(at + numbers.n);
  return gated_value(numbers.activation, sum.x + bias_at(at), up, numbers.limit, numbers.alpha);
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let units = numbers.k / 32u;
  let tasks = (numbers.n + COLUMNS - 1u) / COLUMNS;
  for (var task = group.x; task < numbers.slots * tasks; task += groups.x) {
    let slot = task / tasks;
    let first = task % tasks * COLUMNS;
    let expert = expert_of(slot);
    let place = place_of(expert);
    let row = place * numbers.rows;
    let start = slot / numbers.shared_by * numbers.k;
    let col = first + lid / LANES;
    var sum = vec2<f32>();
    if (col < numbers.n && place != ELSEWHERE) {
      for (var unit = lid % LANES; unit < units; unit += LANES) {
        sum.x += product((row + col) * units + unit, start + unit * 32u);
        if (numbers.activation != 0u) {
          sum.y += product((row + numbers.n + col) * units + unit, start + unit * 32u);
        }
      }
    }
    workgroupBarrier();
    parts[lid] = sum;
    workgroupBarrier();
    let out = first + 2u * lid;
    if (lid < COLUMNS / 2u && out < numbers.n && place != ELSEWHERE) {
      let at = expert * numbers.rows + out;
      let pair = vec2<f32>(column(2u * lid, at), column(2u * lid + 1u, at + 1u));
      put_out(slot * numbers.n + out, pair.x, pair.y, numbers.n - out);
    }
  }
}
