// out = the rows ids of a table. An id out of range gives NaN.
fn id_at(i: u32) -> u32 {
  if (numbers.ids_type == I32) {
    return ids_words[i];
  }
  if (ids_words[2u * i + 1u] != 0u) {
    return 0xffffffffu;
  }
  return ids_words[2u * i];
}

fn value(i: u32) -> f32 {
  let id = id_at(i / numbers.d);
  if (id >= numbers.rows) {
    return not_a_number();
  }
  return table_at(id * numbers.d + i % numbers.d);
}

@compute @workgroup_size(GROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  for (var i = 2u * id.x; i < numbers.count; i += 2u * GROUP * groups.x) {
    put_out(i, value(i), value(i + 1u), numbers.count - i);
  }
}
