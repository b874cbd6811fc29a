// Reductions over a work-group of GROUP invocations, a power of two; all invocations get the result.
var<workgroup> group_values: array<f32, GROUP>;

// A sum of many terms. A single running f32 loses a digit with every tenfold count, so terms are summed in
// blocks.
struct Sum {
  whole: f32,
  block: f32,
  count: u32,
}
fn add(sum: ptr<function, Sum>, term: f32) {
  (*sum).block += term;
  (*sum).count += 1u;
  if ((*sum).count % 64u == 0u) {
    (*sum).whole += (*sum).block;
    (*sum).block = 0.0;
  }
}

fn group_total(lid: u32, sum: Sum) -> f32 {
  return group_sum(lid, sum.whole + sum.block);
}

fn group_sum(lid: u32, value: f32) -> f32 {
  workgroupBarrier();
  group_values[lid] = value;
  for (var half = GROUP / 2u; half > 0u; half = half / 2u) {
    workgroupBarrier();
    if (lid < half) {
      group_values[lid] += group_values[lid + half];
    }
  }
  workgroupBarrier();
  return group_values[0];
}

// Ignores NaN.
fn larger(a: f32, b: f32) -> f32 {
  return select(a, b, b > a);
}

fn group_max(lid: u32, value: f32) -> f32 {
  workgroupBarrier();
  group_values[lid] = value;
  for (var half = GROUP / 2u; half > 0u; half = half / 2u) {
    workgroupBarrier();
    if (lid < half) {
      group_values[lid] = larger(group_values[lid], group_values[lid + half]);
    }
  }
  workgroupBarrier();
  return group_values[0];
}
