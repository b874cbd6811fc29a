// The state space of Mamba-2: see state_scan of the GPU kernels (common/recurrent.inc).
fn scan_column(head: u32, col: u32) {
  let group = head / (numbers.heads / numbers.vector_groups);
  let at = head * numbers.state_dim * numbers.head_dim + col;
  for (var t = 0u; t < numbers.tokens; t++) {
    let row = numbers.mixed_from + t * numbers.mixed_step;
    let writes = row + numbers.heads * numbers.head_dim + group * numbers.state_dim;
    let reads = writes + numbers.vector_groups * numbers.state_dim;
    let step = softplus(steps_at(numbers.steps_from + t * numbers.steps_step + head) + step_bias_at(head));
    let fade = exponential(decay_at(head) * step);
    let v = mixed_row(row + head * numbers.head_dim + col);
    var read = 0.0;
    for (var i = 0u; i < numbers.state_dim; i++) {
      let place = at + i * numbers.head_dim;
      let s = fade * before_at(t, place) + mixed_row(writes + i) * (v * step);
      next_state_words[place] = bitcast<u32>(s);
      read += mixed_row(reads + i) * s;
    }
    let out = numbers.out_from + (t * numbers.heads + head) * numbers.head_dim + col;
    out_words[out] = bitcast<u32>(read + skip_at(head) * v);
  }
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let blocks = (numbers.head_dim + GROUP - 1u) / GROUP;
  for (var task = group.x; task < numbers.heads * blocks; task += groups.x) {
    let col = task % blocks * GROUP + lid;
    if (col < numbers.head_dim) {
      scan_column(task / blocks, col);
    }
  }
}
