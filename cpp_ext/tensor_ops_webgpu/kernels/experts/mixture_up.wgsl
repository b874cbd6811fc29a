// The choice of a row of logits, and the activated values of its experts and of the shared expert: see
// mixture_up of the GPU kernels (common/experts/mixture.inc). LANES invocations take a row of b, or of the shared
// expert's matrix, together, 32 values at a time.
fn gated(sums: vec2<f32>) -> f32 {
  return gated_value(numbers.activation, sums.x, select(1.0, sums.y, numbers.gated != 0u), numbers.limit, numbers.alpha);
}

fn write_choice(lid: u32, row: u32) {
  for (var i = lid; i < numbers.used; i += GROUP) {
    ids_words[row * numbers.used + i] = chosen[i];
    var weight = share[i];
    if (numbers.scales_type != 0u) {
      weight *= scales_at(chosen[i]);
    }
    weights_words[row * (numbers.used + 1u) + i] = bitcast<u32>(select(weight, 1.0, numbers.scales_input != 0u));
  }
  if (lid == 0u) {
    var of_shared = 1.0;
    if (numbers.shared_gate != 0u) {
      of_shared = 1.0 / (1.0 + exponential(-logits_at(row * (numbers.experts + 1u) + numbers.experts)));
    }
    weights_words[row * (numbers.used + 1u) + numbers.used] = bitcast<u32>(of_shared);
  }
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let of_slot = (numbers.n + COLUMNS - 1u) / COLUMNS;
  let of_slots = numbers.used * of_slot;
  let tasks = of_slots + (numbers.shared_n + COLUMNS - 1u) / COLUMNS;
  let values = numbers.used * numbers.n + numbers.shared_n;
  let of_row = max(groups.x / numbers.rows, 1u);
  for (var i = group.x; i < numbers.rows * of_row; i += groups.x) {
    let row = i / of_row;
    choose_row(lid, row * (numbers.experts + numbers.shared_gate));
    if (i % of_row == 0u) {
      write_choice(lid, row);
    }
    for (var task = i % of_row; task < tasks; task += of_row) {
      let is_shared = task >= of_slots;
      let slot = min(task / of_slot, numbers.used - 1u);
      let width = select(numbers.n, numbers.shared_n, is_shared);
      let first = select(task % of_slot, task - of_slots, is_shared) * COLUMNS;
      let expert = chosen[slot] * select(2u, 1u, numbers.up_type != 0u || numbers.gated == 0u) * numbers.n;
      let k = select(numbers.k, numbers.shared_k, is_shared);
      let units = k / 32u;
      let col = first + lid / LANES;
      var sum = vec2<f32>();
      if (col < width) {
        for (var unit = lid % LANES; unit < units; unit += LANES) {
          let at = row * k + unit * 32u;
          if (is_shared) {
            let of_shared = numbers.shared_from + at;
            sum.x += product_shared(col * units + unit, of_shared);
            if (numbers.gated == 0u) {
              continue;
            }
            if (numbers.shared_up_type != 0u) {
              sum.y += product_shared_up(col * units + unit, of_shared);
            } else {
              sum.y += product_shared((width + col) * units + unit, of_shared);
            }
          } else if (numbers.up_type != 0u) {
            sum.x += product((expert + col) * units + unit, at);
            sum.y += product_up((expert + col) * units + unit, at);
          } else {
            sum.x += product((expert + col) * units + unit, at);
            if (numbers.gated != 0u) {
              sum.y += product((expert + width + col) * units + unit, at);
            }
          }
        }
        if (!is_shared) {
          sum *= select(1.0, share[slot], numbers.scales_input != 0u);
          if (lid % LANES == 0u) {
            let of_gate = chosen[slot] * 2u * numbers.n + col;
            sum += vec2<f32>(bias_at(of_gate), bias_at(of_gate + width));
          }
        }
      }
      workgroupBarrier();
      parts[lid] = sum;
      workgroupBarrier();
      let pair = first + 2u * lid;
      if (lid < COLUMNS / 2u && pair < width) {
        let out = row * values + select(slot * numbers.n, numbers.used * numbers.n, is_shared) + pair;
        put_out(out, gated(column_sums(2u * lid)), gated(column_sums(2u * lid + 1u)), width - pair);
      }
    }
    workgroupBarrier();  // the next row writes the choice
  }
}
