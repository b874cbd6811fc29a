// out = row @ [b; shared; up]^T + bias for one row, or, with an activation, activation(row @ b^T) * (row @
// shared^T), where `shared` may be the other half of b, `paired`, or `factors`, or ones; without an activation,
// `factors` multiply some products: see linear_beside of the GPU kernels (common/linear/linear_beside.inc). LANES invocations take a row of a matrix together.
fn value(lane: u32, col: u32) -> f32 {
  let sums = column_sums(lane);
  if (numbers.activation == 0u) {
    let scaled = col >= numbers.factors_from && col - numbers.factors_from < numbers.factors_n;
    return (sums.x + bias_at(col)) * select(1.0, factors_at(select(0u, col - numbers.factors_from, scaled)), scaled);
  }
  var up = sums.y;
  if (numbers.shared_type == 0u && numbers.paired == 0u) {
    up = select(1.0, factors_at(col), numbers.factors_type != 0u);
  }
  return gated_value(numbers.activation, (sums.x + bias_at(col)) * numbers.gate_factor, up, 0.0, 0.0);
}

// An invocation's part of the product with row `col` of a matrix: 0 is b, 1 shared, 2 up; and of that which this
// gates.
fn part_of(matrix: u32, col: u32, lane: u32) -> vec2<f32> {
  let units = numbers.k / 32u;
  var sum = vec2<f32>();
  for (var unit = lane; unit < units; unit += LANES) {
    if (matrix == 2u) {
      sum.x += product_up(col * units + unit, unit * 32u);
    } else if (matrix == 1u) {
      sum.x += product_shared(col * units + unit, unit * 32u);
    } else {
      sum.x += product(col * units + unit, unit * 32u);
      if (numbers.paired != 0u) {
        sum.y += product((numbers.n + col) * units + unit, unit * 32u);
      } else if (numbers.activation != 0u && numbers.shared_type != 0u) {
        sum.y += product_shared(col * units + unit, unit * 32u);
      }
    }
  }
  return sum;
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  prepare_row(lid, group.x);
  let first_end = (numbers.n + COLUMNS - 1u) / COLUMNS;
  var second_end = first_end;
  var end = first_end;
  if (numbers.activation == 0u) {
    second_end += (numbers.more + COLUMNS - 1u) / COLUMNS;
    end = second_end + (numbers.last + COLUMNS - 1u) / COLUMNS;
  }
  for (var task = group.x; task < end; task += groups.x) {
    var matrix = 0u;
    var width = numbers.n;
    var before = 0u;
    var first = task * COLUMNS;
    if (task >= second_end) {
      matrix = 2u;
      width = numbers.last;
      before = numbers.n + numbers.more;
      first = (task - second_end) * COLUMNS;
    } else if (task >= first_end) {
      matrix = 1u;
      width = numbers.more;
      before = numbers.n;
      first = (task - first_end) * COLUMNS;
    }
    let col = first + lid / LANES;
    var sum = vec2<f32>();
    if (col < width) {
      sum = part_of(matrix, col, lid % LANES);
    }
    workgroupBarrier();
    parts[lid] = sum;
    workgroupBarrier();
    let pair = first + 2u * lid;
    if (lid < COLUMNS / 2u && pair < width) {
      let out = before + pair;
      let second = select(out, out + 1u, pair + 1u < width);
      put_out(out, value(2u * lid, out), value(2u * lid + 1u, second), width - pair);
    }
  }
}
