// out = a @ b^T * factor + y @ shared^T * other_factor, of one row each: see linear_sum of the GPU kernels
// (common/linear/linear_beside.inc). LANES invocations take a column together.
const COLUMNS = GROUP / LANES;

var<workgroup> parts: array<f32, GROUP>;

fn column(lane: u32) -> f32 {
  var sum = 0.0;
  for (var j = 0u; j < LANES; j++) {
    sum += parts[lane * LANES + j];
  }
  return sum;
}

fn part_of(col: u32, lane: u32) -> f32 {
  let units = numbers.k / 32u;
  let more = numbers.other_k / 32u;
  var sum = 0.0;
  var other = 0.0;
  for (var unit = lane; unit < units; unit += LANES) {
    sum += product(col * units + unit, unit * 32u);
  }
  for (var unit = lane; unit < more; unit += LANES) {
    other += product_shared(col * more + unit, unit * 32u);
  }
  return sum * numbers.factor + other * numbers.other_factor;
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let tasks = (numbers.n + COLUMNS - 1u) / COLUMNS;
  for (var task = group.x; task < tasks; task += groups.x) {
    let first = task * COLUMNS;
    let col = first + lid / LANES;
    var sum = 0.0;
    if (col < numbers.n) {
      sum = part_of(col, lid % LANES);
    }
    workgroupBarrier();
    parts[lid] = sum;
    workgroupBarrier();
    let pair = first + 2u * lid;
    if (lid < COLUMNS / 2u && pair < numbers.n) {
      put_out(pair, column(2u * lid), column(2u * lid + 1u), numbers.n - pair);
    }
  }
}
