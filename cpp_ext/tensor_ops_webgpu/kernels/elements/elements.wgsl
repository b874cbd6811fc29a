// out = formula(x), or formula(x) * up: silu, gelu, swiglu, geglu. Each invocation computes pairs of
// neighbours.
const SILU = 1u;
const GELU = 2u;

fn activated(x: f32) -> f32 {
  if (is_nan(x)) {
    return x;
  }
  if (numbers.formula == SILU) {
    return silu(x);
  }
  if (numbers.formula == GELU) {
    return gelu(x);
  }
  return gelu_erf(x);
}

fn value(i: u32) -> f32 {
  let v = activated(x_at(i));
  if (numbers.up_type == 0u) {
    return v;
  }
  return v * up_at(i);
}

@compute @workgroup_size(GROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  for (var i = 2u * id.x; i < numbers.count; i += 2u * GROUP * groups.x) {
    put_out(i, value(i), value(i + 1u), numbers.count - i);
  }
}
