// out = x in another dtype, or the dequantized values of blocks.
@compute @workgroup_size(GROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  for (var i = 2u * id.x; i < numbers.count; i += 2u * GROUP * groups.x) {
    put_out(i, x_at(i), x_at(i + 1u), numbers.count - i);
  }
}
