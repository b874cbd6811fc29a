// The gated delta rule: see delta_scan of the GPU kernels (common/recurrent/recurrent.inc).
const TINY = 1e-6;

fn vector_dim() -> u32 {
  return numbers.key_dim;
}

fn place_in_row(channel: u32) -> u32 {
  let wide = numbers.value_heads / numbers.key_heads * numbers.value_dim;
  return place_of(channel, select(0u, numbers.key_heads, numbers.joined != 0u), numbers.key_dim, wide);
}

fn rate_of(token: u32, head: u32) -> f32 {
  let i = numbers.rates_from + token * numbers.rates_step + head;
  var v = 0.0;
  if (numbers.rates_type == 0u) {
    v = mixed_row(i);
  } else {
    v = rates_at(i);
  }
  return 1.0 / (1.0 + exponential(-v));
}

// The channel where the query of a value head begins.
fn query_of(head: u32) -> u32 {
  let each = numbers.value_heads / numbers.key_heads;
  return select(head / each, head % numbers.key_heads, numbers.tiled != 0u) * numbers.key_dim;
}

fn scan_column(head: u32, col: u32) {
  let keys = numbers.key_heads * numbers.key_dim;
  let q = query_of(head);
  let at = head * numbers.key_dim * numbers.value_dim + col;
  for (var t = 0u; t < numbers.tokens; t++) {
    var of_pair = vec3<f32>();  // q q, k k, k q
    var of_state = vec2<f32>();  // by k, by q
    for (var i = 0u; i < numbers.key_dim; i++) {
      let a = first_at(t, q, i);
      let b = second_at(t, q + keys, i);
      of_pair += vec3<f32>(a * a, b * b, a * b);
      of_state += before_at(t, at + i * numbers.value_dim) * vec2<f32>(b, a);
    }
    let to_q = 1.0 / sqrt(of_pair.x + TINY) / sqrt(f32(numbers.key_dim));
    let to_k = 1.0 / sqrt(of_pair.y + TINY);
    let step = softplus(step_of(t, head) + vectors_at(numbers.value_heads + head));
    let fade = exponential(vectors_at(head) * step);
    let v = value_at(t, 2u * keys + head * numbers.value_dim + col);
    let learned = rate_of(t, head) * (v - fade * of_state.x * to_k);
    for (var i = 0u; i < numbers.key_dim; i++) {
      let place = at + i * numbers.value_dim;
      let s = fade * before_at(t, place) + second_at(t, q + keys, i) * to_k * learned;
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
  keep_inputs(group.x * GROUP + lid, groups.x * GROUP);
  for (var task = group.x; task < numbers.value_heads * blocks; task += groups.x) {
    let q = query_of(task / blocks);
    prepare_inputs(lid, q, q + numbers.key_heads * numbers.key_dim, numbers.key_dim);
    let col = task % blocks * GROUP + lid;
    if (col < numbers.value_dim) {
      scan_column(task / blocks, col);
    }
  }
}
