// softmax(x * scale + mask) over rows. The maximum starts at the lowest finite number instead of -inf: then a
// row of -inf needs no special case, and NaN and inf make the sum NaN.
fn score(start: u32, mask_row: u32, j: u32) -> f32 {
  return masked(x_at(start + j) * numbers.scale, mask_at(mask_row + j));
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  for (var row = group.x; row < numbers.rows; row += groups.x) {
    let start = row * numbers.d;
    let mask_row = mask_start(row);
    var own_top = LOWEST;
    for (var j = lid; j < numbers.d; j += GROUP) {
      own_top = larger(own_top, score(start, mask_row, j));
    }
    let top = group_max(lid, own_top);
    var own_sum = Sum();
    for (var j = lid; j < numbers.d; j += GROUP) {
      add(&own_sum, exponential(score(start, mask_row, j) - top));
    }
    let sum = group_total(lid, own_sum);
    let part = select(1.0 / sum, 0.0, sum == 0.0);
    for (var j = 2u * lid; j < numbers.d; j += 2u * GROUP) {
      let first = exponential(score(start, mask_row, j) - top) * part;
      let second = exponential(score(start, mask_row, j + 1u) - top) * part;
      put_out(start + j, first, second, numbers.d - j);
    }
  }
}
