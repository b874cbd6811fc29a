// softmax(q k^T scale + mask) v without a matrix of scores. A work-group per query loops over its keys, GROUP
// at a time. It keeps the largest score so far, the sum of exponentials and the weighted sum of rows of v,
// and scales the sums down whenever a larger score appears. Each invocation computes the score of a key, then
// up to PAIRS pairs of columns.
const PAIRS = 2u;

var<workgroup> weights: array<f32, GROUP>;

// A query that is the sum of q_parts rows of q, q_apart from each other.
var<workgroup> summed: array<f32, 1024>;

fn sum_parts(lid: u32, q_row: u32) {
  workgroupBarrier();
  for (var j = lid; j < numbers.d; j += GROUP) {
    var sum = 0.0;
    for (var part = 0u; part < numbers.q_parts; part++) {
      sum += q_at(q_row + part * numbers.q_apart + j);
    }
    summed[j] = sum;
  }
  workgroupBarrier();
}

// softcap tanh(score / softcap): a series near zero, where the closed form cancels.
fn capped(score: f32) -> f32 {
  if (numbers.softcap == 0.0 || is_nan(score)) {
    return score;
  }
  let u = abs(score) / numbers.softcap;
  if (u < 0.35) {
    let w = u * u;
    let series = w * (-0.33333333 + w * (0.13333333 + w * (-0.053968254 + w * (0.021869489 - w * 0.0088632355))));
    return score + score * series;
  }
  let e = exponential(-2.0 * u);
  return sign(score) * numbers.softcap * (1.0 - e) / (1.0 + e);
}

// A head's sink: one more score for each of its queries, without a value; -inf if there are no sinks.
fn sink_of(head: u32) -> f32 {
  if (numbers.sinks_type == 0u) {
    return negative_infinity();
  }
  return sinks_at(head);
}

fn dot_product(q_row: u32, k_row: u32) -> f32 {
  var sum = 0.0;
  if (numbers.q_parts > 1u) {
    for (var j = 0u; j < numbers.d; j++) {
      sum += summed[j] * k_at(k_row + j);
    }
    return sum;
  }
  for (var j = 0u; j < numbers.d; j++) {
    sum += q_at(q_row + j) * k_at(k_row + j);
  }
  return sum;
}

// Query i sees the keys from .x up to, but not including, .y; it is at the position of key i + s - t.
fn seen(i: u32) -> vec2<u32> {
  let place = i32(i) + i32(numbers.s) - i32(numbers.t);
  var first = 0;
  if (numbers.window != 0u) {
    first = max(0, place + 1 - i32(numbers.window));
  }
  var end = i32(numbers.s);
  if (numbers.causal != 0u) {
    end = max(0, place + 1);
  }
  return vec2<u32>(u32(first), u32(end));
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  for (var row = group.x; row < numbers.rows; row += groups.x) {
    let item = row / numbers.t / numbers.heads;
    let head = row / numbers.t % numbers.heads;
    let key_head = head / (numbers.heads / numbers.key_heads);
    let q_row = q_start(row);
    let k_rows = k_start(item) + key_head * numbers.k_head;
    let v_rows = v_start(item) + key_head * numbers.v_head;
    let mask_row = mask_start(row);
    let keys = seen(row % numbers.t);

    if (numbers.q_parts > 1u) {
      sum_parts(lid, q_row);
    }
    let sink = sink_of(head);
    var top = larger(LOWEST, sink);
    var own_sum = select(0.0, exponential(sink - top), lid == 0u);
    var columns = array<vec2<f32>, PAIRS>();
    for (var key0 = keys.x; key0 < keys.y; key0 += GROUP) {
      let key = key0 + lid;
      var score = negative_infinity();
      if (key < keys.y) {
        score = capped(dot_product(q_row, k_rows + key * numbers.k_row) * numbers.scale);
        score = masked(score, mask_at(mask_row + key));
      }
      let new_top = larger(top, group_max(lid, score));
      let kept = exponential(top - new_top);
      weights[lid] = exponential(score - new_top);
      own_sum = own_sum * kept + weights[lid];
      top = new_top;
      workgroupBarrier();
      let count = min(GROUP, keys.y - key0);
      for (var pair = 0u; pair < PAIRS; pair++) {
        let col = 2u * (lid + pair * GROUP);
        var sum = vec2<f32>();
        if (col < numbers.e) {
          for (var n = 0u; n < count; n++) {
            let v = v_rows + (key0 + n) * numbers.v_row + col;
            sum += weights[n] * vec2<f32>(v_at(v), v_at(v + 1u));
          }
        }
        columns[pair] = columns[pair] * kept + sum;
      }
    }

    let sum = group_sum(lid, own_sum);
    let part = select(1.0 / sum, 0.0, sum == 0.0);
    for (var pair = 0u; pair < PAIRS; pair++) {
      let col = 2u * (lid + pair * GROUP);
      if (col < numbers.e) {
        let first = select(columns[pair].x * part, 0.0, sum == 0.0);
        let second = select(columns[pair].y * part, 0.0, sum == 0.0);
        put_out(row * numbers.e + col, first, second, numbers.e - col);
      }
    }
  }
}
