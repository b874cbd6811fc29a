// The same of one token, whose convolution a work-group computes for itself, as far as it needs it.
var<workgroup> own: array<f32, 512>;

fn joined_input(at: u32, channel: u32) -> f32 {
  if (at + 1u < numbers.count) {
    return inputs_at(at * numbers.channels + channel);
  }
  return mixed_row(numbers.mixed_from + place_in_row(channel));
}

fn value_at(token: u32, channel: u32) -> f32 {
  var v = 0.0;
  for (var tap = 0u; tap < numbers.count; tap++) {
    v += joined_input(tap, channel) * taps_at(channel * numbers.count + tap);
  }
  return silu(v + bias_at(channel));
}

// The vectors of `dim` values that begin at these channels.
fn prepare_inputs(lid: u32, first: u32, second: u32, dim: u32) {
  workgroupBarrier();  // all have read what is there
  for (var i = lid; i < 2u * dim; i += GROUP) {
    own[i] = value_at(0u, select(second + i - dim, first + i, i < dim));
  }
  workgroupBarrier();
}

// What the convolution of the next token begins with.
fn keep_inputs(invocation: u32, invocations: u32) {
  for (var i = invocation; i < (numbers.count - 1u) * numbers.channels; i += invocations) {
    let found = joined_input(1u + i / numbers.channels, i % numbers.channels);
    next_inputs_words[i] = bitcast<u32>(found);
  }
}

fn first_at(token: u32, channel: u32, i: u32) -> f32 {
  return own[i];
}

fn second_at(token: u32, channel: u32, i: u32) -> f32 {
  return own[vector_dim() + i];
}
