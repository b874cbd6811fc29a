// What the scans of recurrent states share. An invocation has a column of a head's matrix, which no other
// reads: token after token, it is in `next_state`. The first token finds it in `state`; without that,
// `next_state` has it already.
fn before_at(token: u32, i: u32) -> f32 {
  if (token == 0u && numbers.state_type != 0u) {
    return state_at(i);
  }
  return bitcast<f32>(next_state_words[i]);
}

fn mixed_row(i: u32) -> f32 {
  return bitcast<f32>(mixed_words[i]);
}

// Rates and steps that are not given are in `mixed`.
fn step_of(token: u32, head: u32) -> f32 {
  let i = numbers.steps_from + token * numbers.steps_step + head;
  if (numbers.steps_type == 0u) {
    return mixed_row(i);
  }
  return steps_at(i);
}

// log(1 + exp(x)). WGSL has no log of 1 + a small number.
fn softplus(x: f32) -> f32 {
  let e = exponential(-abs(x));
  let series = e * (1.0 - e * (0.5 - e * (0.33333333 - e * (0.25 - 0.2 * e))));
  return max(x, 0.0) + select(log(1.0 + e), series, e < 0.03125);
}
