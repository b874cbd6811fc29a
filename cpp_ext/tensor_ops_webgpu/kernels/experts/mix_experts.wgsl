// out[row] = the sum of the row's `used` results, each of n values, times its weight.
fn mixed(i: u32) -> f32 {
  let row = i / numbers.n;
  var sum = 0.0;
  for (var j = row * numbers.used; j < (row + 1u) * numbers.used; j++) {
    sum += weights_at(j) * results_at(j * numbers.n + i % numbers.n);
  }
  return sum;
}

@compute @workgroup_size(GROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  for (var i = 2u * id.x; i < numbers.count; i += 2u * GROUP * groups.x) {
    put_out(i, mixed(i), mixed(i + 1u), numbers.count - i);
  }
}
