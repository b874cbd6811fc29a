// out = the weighted sum of what a row's experts and the shared expert compute by their last matrices: see
// mixture_down of the GPU kernels (common/experts/mixture.inc). LANES invocations take a column together.
const COLUMNS = GROUP / LANES;

var<workgroup> parts: array<f32, GROUP>;

fn column(lane: u32) -> f32 {
  var sum = 0.0;
  for (var j = 0u; j < LANES; j++) {
    sum += parts[lane * LANES + j];
  }
  return sum;
}

// This invocation's part of column `col` of row `row`: of all, or with `shared_to` of the experts, or of the
// shared one alone.
fn part_of(row: u32, col: u32, lane: u32, shared_alone: bool) -> f32 {
  let start = row * (numbers.used * numbers.n + numbers.shared_n);
  let units = numbers.n / 32u;
  var sum = 0.0;
  for (var slot = select(0u, numbers.used, shared_alone); slot < numbers.used; slot++) {
    let of_b = ids_words[row * numbers.used + slot] * numbers.width + col;
    var found = 0.0;
    for (var unit = lane; unit < units; unit += LANES) {
      found += product(of_b * units + unit, start + slot * numbers.n + unit * 32u);
    }
    if (lane == 0u) {
      found += bias_at(of_b);
    }
    sum += weights_at(row * (numbers.used + 1u) + slot) * found;
  }
  if (numbers.shared_to != 0u && !shared_alone) {
    return sum;
  }
  let more = numbers.shared_n / 32u;
  var found = 0.0;
  for (var unit = lane; unit < more; unit += LANES) {
    found += product_shared(col * more + unit, start + numbers.used * numbers.n + unit * 32u);
  }
  return sum + weights_at(row * (numbers.used + 1u) + numbers.used) * found;
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let for_experts = (numbers.width + COLUMNS - 1u) / COLUMNS;
  let for_shared = select(0u, (numbers.shared_width + COLUMNS - 1u) / COLUMNS, numbers.shared_to != 0u);
  let of_experts = numbers.rows * for_experts;
  let tasks = of_experts + numbers.rows * for_shared;
  for (var task = group.x; task < tasks; task += groups.x) {
    let shared_alone = task >= of_experts;
    let of_row = select(for_experts, for_shared, shared_alone);
    let width = select(numbers.width, numbers.shared_width, shared_alone);
    let among = select(task, task - of_experts, shared_alone);
    let row = among / of_row;
    let first = among % of_row * COLUMNS;
    let col = first + lid / LANES;
    var sum = 0.0;
    if (col < width) {
      sum = part_of(row, col, lid % LANES, shared_alone);
    }
    workgroupBarrier();
    parts[lid] = sum;
    workgroupBarrier();
    let pair = first + 2u * lid;
    if (lid < COLUMNS / 2u && pair < width) {
      let out = select(0u, numbers.shared_to, shared_alone) + row * width + pair;
      put_out(out, column(2u * lid), column(2u * lid + 1u), width - pair);
    }
  }
}
