// x times what a gate lets through, and its norm: see gated_norm of the GPU kernels (common/recurrent/recurrent.inc).
fn opened(i: u32) -> f32 {
  let g = gate_at(i);
  let part = 1.0 / (1.0 + exponential(-g));
  return select(g * part, part, numbers.by_sigmoid != 0u);
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  for (var task = group.x; task < numbers.rows * numbers.parts; task += groups.x) {
    let part = task % numbers.parts;
    let first = numbers.x_from + task * numbers.dim;
    let of_row = numbers.gate_from + task / numbers.parts * numbers.gate_step;
    let among = part / numbers.gate_each * numbers.gate_group + part % numbers.gate_each * numbers.dim;
    let gate = of_row + among;
    var squares = Sum();
    for (var i = lid; i < numbers.dim; i += GROUP) {
      var v = x_at(first + i);
      if (numbers.norm_first == 0u) {
        v *= opened(gate + i);
      }
      add(&squares, v * v);
    }
    let scale = 1.0 / sqrt(group_total(lid, squares) / f32(numbers.dim) + numbers.eps);
    for (var i = lid; i < numbers.dim; i += GROUP) {
      var v = x_at(first + i) * opened(gate + i);
      if (numbers.weight_type != 0u) {
        v *= scale * weight_at(part * numbers.weight_step + i);
      }
      out_words[task * numbers.dim + i] = bitcast<u32>(v);
    }
  }
}
