// The indices of the `used` experts with the largest scores, and their weights, of each row of logits.
@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  for (var row = group.x; row < numbers.rows; row += groups.x) {
    choose_row(lid, row * numbers.experts);
    for (var i = lid; i < numbers.used; i += GROUP) {
      ids_words[row * numbers.used + i] = chosen[i];
      weights_words[row * numbers.used + i] = bitcast<u32>(share[i]);
    }
    workgroupBarrier();  // the next row writes the choice
  }
}
