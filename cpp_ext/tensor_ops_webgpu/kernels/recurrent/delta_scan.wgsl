// The gated delta rule: see delta_scan of the GPU kernels (common/recurrent.inc).
const TINY = 1e-6;

fn scan_column(head: u32, col: u32) {
  let keys = numbers.key_heads * numbers.key_dim;
  let key_head = select(head / (numbers.value_heads / numbers.key_heads), head % numbers.key_heads, numbers.tiled != 0u);
  let at = head * numbers.key_dim * numbers.value_dim + col;
  for (var t = 0u; t < numbers.tokens; t++) {
    let row = numbers.mixed_from + t * numbers.mixed_step;
    let q = row + key_head * numbers.key_dim;
    var of_pair = vec3<f32>();  // q q, k k, k q
    var of_state = vec2<f32>();  // by k, by q
    for (var i = 0u; i < numbers.key_dim; i++) {
      let a = mixed_row(q + i);
      let b = mixed_row(q + keys + i);
      of_pair += vec3<f32>(a * a, b * b, a * b);
      of_state += before_at(t, at + i * numbers.value_dim) * vec2<f32>(b, a);
    }
    let to_q = 1.0 / sqrt(of_pair.x + TINY) / sqrt(f32(numbers.key_dim));
    let to_k = 1.0 / sqrt(of_pair.y + TINY);
    let step = softplus(steps_at(numbers.steps_from + t * numbers.steps_step + head) + step_bias_at(head));
    let fade = exponential(decay_at(head) * step);
    let rate = 1.0 / (1.0 + exponential(-rates_at(numbers.rates_from + t * numbers.rates_step + head)));
    let v = mixed_row(row + 2u * keys + head * numbers.value_dim + col);
    let learned = rate * (v - fade * of_state.x * to_k);
    for (var i = 0u; i < numbers.key_dim; i++) {
      let place = at + i * numbers.value_dim;
      let s = fade * before_at(t, place) + mixed_row(q + keys + i) * to_k * learned;
      next_state_words[place] = bitcast<u32>(s);
    }
    let out = numbers.out_from + (t * numbers.value_heads + head) * numbers.value_dim + col;
    out_words[out] = bitcast<u32>(fade * of_state.y * to_q + of_pair.z * to_k * to_q * learned);
  }
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let blocks = (numbers.value_dim + GROUP - 1u) / GROUP;
  for (var task = group.x; task < numbers.value_heads * blocks; task += groups.x) {
    let col = task % blocks * GROUP + lid;
    if (col < numbers.value_dim) {
      scan_column(task / blocks, col);
    }
  }
}
