// out = a @ b for few rows of a. A work-group computes 64 columns of one row, each invocation a pair of them
// over one of SLICES parts of k.
const LANES = 32u;
const SLICES = 8u;
const BLOCK = 64u;

var<workgroup> parts: array<vec2<f32>, GROUP>;

fn part(a_start: u32, b_start: u32, slice: u32) -> vec2<f32> {
  var sum = vec2<f32>();
  var block = vec2<f32>();
  var count = 0u;
  for (var kk = slice; kk < numbers.k; kk += SLICES) {
    let b = b_start + kk * numbers.n;
    block += a_at(a_start + kk) * vec2<f32>(b_at(b), b_at(b + 1u));
    count++;
    if (count % BLOCK == 0u) {
      sum += block;
      block = vec2<f32>();
    }
  }
  return sum + block;
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let across = (numbers.n + 2u * LANES - 1u) / (2u * LANES);
  for (var task = group.x; task < numbers.batch * numbers.m * across; task += groups.x) {
    let row = task / across;
    let col = task % across * 2u * LANES + lid % LANES * 2u;
    workgroupBarrier();
    parts[lid] = vec2<f32>();
    if (col < numbers.n) {
      parts[lid] = part(row * numbers.k, row / numbers.m * numbers.b_step + col, lid / LANES);
    }
    workgroupBarrier();
    if (lid < LANES && col < numbers.n) {
      var sum = vec2<f32>();
      for (var slice = 0u; slice < SLICES; slice++) {
        sum += parts[slice * LANES + lid];
      }
      put_out(row * numbers.n + col, sum.x, sum.y, numbers.n - col);
    }
  }
}
