// A token's queries, keys and values lie in x, in rows of `d`: see rope_append of the GPU kernels
// (common/elements/tensors.inc). The first 2 r elements of queries and keys are rotated in pairs, as in apply_rope.wgsl.
const QUERY = 0u;
const KEY = 1u;
const VALUE = 2u;

fn weight_at(kind: u32, i: u32) -> f32 {
  switch kind {
    case QUERY: { return q_norm_at(i); }
    case KEY: { return k_norm_at(i); }
    default: { return v_norm_at(i); }
  }
}

// A row of x that begins at `start`: its kind, and where its weights begin. Without a norm, `scale` is 0.
struct Head {
  kind: u32,
  start: u32,
  weights: u32,
  scale: f32,
}

// Element j, normalized if that comes before the rotation.
fn normed(head: Head, j: u32) -> f32 {
  let v = x_at(head.start + j);
  if (head.scale == 0.0 || numbers.late != 0u) {
    return v;
  }
  return v * head.scale * weight_at(head.kind, head.weights + j);
}

fn rotated(head: Head, j: u32) -> f32 {
  if (j >= 2u * numbers.r || head.kind == VALUE) {
    return normed(head, j);
  }
  let apart = select(numbers.r, 1u, numbers.interleaved != 0u);
  let is_first = select(j < numbers.r, j % 2u == 0u, numbers.interleaved != 0u);
  let pair = select(j % numbers.r, j / 2u, numbers.interleaved != 0u);
  if (is_first) {
    return normed(head, j) * cos_at(pair) - normed(head, j + apart) * sin_at(pair);
  }
  return normed(head, j) * cos_at(pair) + normed(head, j - apart) * sin_at(pair);
}

fn value(head: Head, j: u32) -> f32 {
  var v = rotated(head, j);
  if (numbers.late != 0u && head.scale != 0.0) {
    v *= head.scale * weight_at(head.kind, head.weights + j);
  }
  return select(v, v * numbers.factor, head.kind == QUERY);
}

// What a norm multiplies `span` elements from `start` on by, all of them rotated before if it is late.
fn scale_of(lid: u32, kind: u32, start: u32, span: u32) -> f32 {
  let raw = Head(kind, start, 0u, 0.0);
  var part = Sum();
  for (var j = lid; j < span; j += GROUP) {
    var v = x_at(start + j);
    if (numbers.late != 0u) {
      v = rotated(raw, j);
    }
    add(&part, v * v);
  }
  return 1.0 / sqrt(group_total(lid, part) / f32(span) + numbers.eps);
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  for (var row = group.x; row < numbers.heads + 2u * numbers.kv_heads; row += groups.x) {
    var kind = QUERY;
    var number = row;
    var first = numbers.q_first;
    var step = numbers.q_step;
    var span = numbers.q_span;
    var has_norm = numbers.q_norm_type != 0u;
    if (row >= numbers.heads + numbers.kv_heads) {
      kind = VALUE;
      number = row - numbers.heads - numbers.kv_heads;
      first = numbers.v_first;
      step = 1u;
      span = numbers.d;
      has_norm = numbers.v_norm_type != 0u;
    } else if (row >= numbers.heads) {
      kind = KEY;
      number = row - numbers.heads;
      first = numbers.k_first;
      step = 1u;
      span = numbers.k_span;
      has_norm = numbers.k_norm_type != 0u;
    }
    var head = Head(kind, (first + number * step) * numbers.d, 0u, 0.0);
    if (has_norm) {
      var all = head.start;
      if (span > numbers.d) {
        all = first * numbers.d;
        head.weights = number * numbers.d;
      }
      head.scale = scale_of(lid, kind, all, span);
    }
    for (var j = 2u * lid; j < numbers.d; j += 2u * GROUP) {
      let left = value(head, j);
      let right = value(head, j + 1u);
      if (kind == QUERY) {
        put_q(row * numbers.d + j, left, right, numbers.d - j);
      } else {
        let to = select(numbers.k_from, numbers.v_from, kind == VALUE);
        put_cache(to + number * numbers.head_step + j, left, right, numbers.d - j);
      }
    }
  }
}
