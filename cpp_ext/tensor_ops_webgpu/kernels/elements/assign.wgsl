// out = x, converted to out's type, for arrays with any strides. Work-groups take rows of `d` elements. An
// array begins `_from` elements after its buffer. Halves of out are written in pairs.
@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  for (var row = group.x; row < numbers.rows; row += groups.x) {
    let start = numbers.x_from + x_start(row);
    let to = numbers.out_from + out_start(row);
    for (var j = 2u * lid; j < numbers.d; j += 2u * GROUP) {
      let first = x_at(start + j * numbers.x_step);
      let second = x_at(start + (j + 1u) * numbers.x_step);
      put_out(to + j, first, second, numbers.d - j);
    }
  }
}
