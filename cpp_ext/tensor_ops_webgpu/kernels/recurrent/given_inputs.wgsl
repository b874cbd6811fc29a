// What a scan reads of a token: two vectors of each head, and its values, from a channel on.
fn prepare_inputs(lid: u32, first: u32, second: u32, dim: u32) {}

fn keep_inputs(invocation: u32, invocations: u32) {}

fn first_at(token: u32, channel: u32, i: u32) -> f32 {
  return mixed_row(numbers.mixed_from + token * numbers.mixed_step + channel + i);
}

fn second_at(token: u32, channel: u32, i: u32) -> f32 {
  return first_at(token, channel, i);
}

fn value_at(token: u32, channel: u32) -> f32 {
  return first_at(token, channel, 0u);
}
