// The state space of Mamba-2: see state_scan of the GPU kernels (common/recurrent/recurrent.inc).
fn vector_dim() -> u32 {
  return numbers.state_dim;
}

fn place_in_row(channel: u32) -> u32 {
  return channel;
}

// The channel where the input vector of a head begins.
fn writes_of(head: u32) -> u32 {
  let group = head / (numbers.heads / numbers.vector_groups);
  return numbers.heads * numbers.head_dim + group * numbers.state_dim;
}

fn scan_column(head: u32, col: u32) {
  let writes = writes_of(head);
  let reads = writes + numbers.vector_groups * numbers.state_dim;
  let at = head * numbers.state_dim * numbers.head_dim + col;
  for (var t = 0u; t < numbers.tokens; t++) {
    let step = softplus(step_of(t, head) + vectors_at(numbers.heads + head));
    let fade = exponential(vectors_at(head) * step);
    let v = value_at(t, head * numbers.head_dim + col);
    var read = 0.0;
    for (var i = 0u; i < numbers.state_dim; i++) {
      let place = at + i * numbers.head_dim;
      let s = fade * before_at(t, place) + first_at(t, writes, i) * (v * step);
      next_state_words[place] = bitcast<u32>(s);
      read += second_at(t, reads, i) * s;
    }
    let out = numbers.out_from + (t * numbers.heads + head) * numbers.head_dim + col;
    out_words[out] = bitcast<u32>(read + vectors_at(2u * numbers.heads + head) * v);
  }
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let blocks = (numbers.head_dim + GROUP - 1u) / GROUP;
  keep_inputs(group.x * GROUP + lid, groups.x * GROUP);
  for (var task = group.x; task < numbers.heads * blocks; task += groups.x) {
    let writes = writes_of(task / blocks);
    prepare_inputs(lid, writes, writes + numbers.vector_groups * numbers.state_dim, numbers.state_dim);
    let col = task % blocks * GROUP + lid;
    if (col < numbers.head_dim) {
      scan_column(task / blocks, col);
    }
  }
}
