// The causal convolution of channels: see convolve of the GPU kernels (common/recurrent/recurrent.inc).
fn input_at(at: u32, channel: u32) -> f32 {
  if (at + 1u < numbers.count) {
    return state_at(at * numbers.channels + channel);
  }
  let place = place_of(channel, numbers.key_heads, numbers.key_dim, numbers.wide);
  let i = numbers.x_from + (at + 1u - numbers.count) * numbers.x_step + place;
  if (numbers.gated == 0u) {
    return x_at(i);
  }
  return x_at(i) * x_at(i + 2u * numbers.channels);
}

fn convolved(row: u32, channel: u32) -> f32 {
  var v = 0.0;
  for (var tap = 0u; tap < numbers.count; tap++) {
    v += input_at(row + tap, channel) * taps_at(channel * numbers.count + tap);
  }
  v += bias_at(channel);
  if (numbers.activated != 0u) {
    v = silu(v);
  }
  if (numbers.gated != 0u) {
    v *= x_at(numbers.x_from + row * numbers.x_step + numbers.channels + channel);
  }
  return v;
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  for (var row = group.x; row < numbers.tokens + numbers.count - 1u; row += groups.x) {
    for (var c = lid; c < numbers.channels; c += GROUP) {
      if (row >= numbers.tokens) {
        next_state_words[(row - numbers.tokens) * numbers.channels + c] = bitcast<u32>(input_at(row, c));
      } else {
        out_words[row * numbers.channels + c] = bitcast<u32>(convolved(row, c));
      }
    }
  }
}
