// A token's queries for what tokens of latent attention keep, in parts, and what it keeps: see latent_append of the
// GPU kernels (common/attention/latent_append.inc). b is the matrices of heads, shared that of queries. LANES invocations take
// a row of shared together.
const SLICE = 32u;

var<workgroup> own: array<f32, 2048>;
var<workgroup> query: array<f32, SLICE>;

fn row_at(i: u32) -> f32 {
  return own[i];
}
fn a_quad(i: u32) -> vec4<f32> {
  return vec4<f32>(own[i], own[i + 1u], own[i + 2u], own[i + 3u]);
}
fn query_at(i: u32) -> f32 {
  return query[i];
}
fn query_quad(i: u32) -> vec4<f32> {
  return vec4<f32>(query[i], query[i + 1u], query[i + 2u], query[i + 3u]);
}

fn deviation(lid: u32, squares: Sum, count: u32) -> f32 {
  return 1.0 / sqrt(group_total(lid, squares) / f32(count) + numbers.eps);
}

// The row that is multiplied by the matrix of queries.
fn prepare_row(lid: u32) {
  var squares = Sum();
  for (var j = lid; j < numbers.k; j += GROUP) {
    own[j] = a_at(numbers.x_from + j);
    add(&squares, own[j] * own[j]);
  }
  if (numbers.post_type != 0u) {
    let scale = deviation(lid, squares, numbers.k);
    for (var j = lid; j < numbers.k; j += GROUP) {
      own[j] = own[j] * scale * post_at(j);
    }
  }
  workgroupBarrier();
}

// Which value of a head's query is number j of a slice, or `dim` if there is none: after the slices of the plain
// values, those of the rotated ones have the first values of pairs, then the second.
fn value_of(slice: u32, j: u32) -> u32 {
  let slices = numbers.plain / SLICE;
  if (slice < slices) {
    return slice * SLICE + j;
  }
  let pair = (slice - slices) * (SLICE / 2u) + j % (SLICE / 2u);
  let second = j / (SLICE / 2u);
  if (pair >= numbers.r) {
    return numbers.plain + 2u * numbers.r;
  }
  return numbers.plain + select(pair + second * numbers.r, 2u * pair + second, numbers.interleaved != 0u);
}

fn find_query(lid: u32, head: u32, slice: u32) {
  let dim = numbers.plain + 2u * numbers.r;
  if (numbers.shared_type == 0u) {
    if (lid < SLICE) {
      let value = value_of(slice, lid);
      var found = 0.0;
      if (value < dim) {
        found = a_at(numbers.x_from + head * dim + value);
      }
      query[lid] = found * numbers.factor;
    }
    workgroupBarrier();
    return;
  }
  let units = numbers.k / 32u;
  for (var first = 0u; first < SLICE; first += COLUMNS) {
    let value = value_of(slice, first + lid / LANES);
    var sum = vec2<f32>();
    if (value < dim) {
      for (var unit = lid % LANES; unit < units; unit += LANES) {
        sum.x += product_shared((head * dim + value) * units + unit, unit * 32u);
      }
    }
    parts[lid] = sum;
    workgroupBarrier();
    if (lid < COLUMNS) {
      query[first + lid] = column_sums(lid).x * numbers.factor;
    }
    workgroupBarrier();
  }
}

// What rotating a pair of values gives: the first and the second.
fn turned(a: f32, b: f32, pair: u32) -> vec2<f32> {
  return vec2<f32>(a * cos_at(pair) - b * sin_at(pair), b * cos_at(pair) + a * sin_at(pair));
}

fn put_turned(lid: u32, head: u32, slice: u32) {
  let slices = numbers.plain / SLICE;
  let wide = numbers.rank + 2u * numbers.r;
  for (var i = lid; i < slices * (SLICE / 2u); i += GROUP) {
    let j = i % (SLICE / 2u);
    let part = i / (SLICE / 2u);
    let pair = (slice - slices) * (SLICE / 2u) + j;
    if (pair < numbers.r) {
      let at = (part * numbers.heads + head) * wide + numbers.rank;
      let found = select(vec2<f32>(), turned(query[j], query[SLICE / 2u + j], pair), part == 0u);
      let first = select(pair, 2u * pair, numbers.interleaved != 0u);
      let second = select(pair + numbers.r, 2u * pair + 1u, numbers.interleaved != 0u);
      q_words[at + first] = bitcast<u32>(found.x);
      q_words[at + second] = bitcast<u32>(found.y);
    }
  }
}

// Value i of what the token keeps.
fn kept_value(scale: f32, i: u32) -> f32 {
  if (i < numbers.rank) {
    return keep_at(numbers.keep_from + i) * scale * keep_norm_at(i);
  }
  let j = i - numbers.rank;
  let key = numbers.keep_from + numbers.rank;
  let pair = select(j % numbers.r, j / 2u, numbers.interleaved != 0u);
  let first = select(pair, 2u * pair, numbers.interleaved != 0u);
  let second = select(pair + numbers.r, 2u * pair + 1u, numbers.interleaved != 0u);
  let found = turned(keep_at(key + first), keep_at(key + second), pair);
  return select(found.y, found.x, j == first);
}

// Values 64 i to 64 i + 63 of what the token keeps, as two blocks of q8_0: together they are whole words.
fn put_blocks(scale: f32, i: u32) {
  var words = array<u32, 17>();
  for (var block = 0u; block < 2u; block++) {
    let start = 64u * i + 32u * block;
    var top = 0.0;
    for (var j = 0u; j < 32u; j++) {
      top = max(top, abs(kept_value(scale, start + j)));
    }
    let step = top / 127.0;
    for (var j = 0u; j < 17u; j++) {
      var bits = f16_bits(step);
      if (j > 0u) {
        let at = start + 2u * (j - 1u);
        bits = code_pair(kept_value(scale, at), kept_value(scale, at + 1u), step);
      }
      let half = 17u * block + j;
      words[half / 2u] |= bits << (half % 2u * 16u);
    }
  }
  for (var j = 0u; j < 17u; j++) {
    cache_words[numbers.cache_from / 4u + 17u * i + j] = words[j];
  }
}

fn keep_row(lid: u32) {
  var squares = Sum();
  for (var j = lid; j < numbers.rank; j += GROUP) {
    let v = keep_at(numbers.keep_from + j);
    add(&squares, v * v);
  }
  let scale = deviation(lid, squares, numbers.rank);
  let wide = numbers.rank + 2u * numbers.r;
  if (numbers.cache_type == BOOL) {
    for (var i = lid; i < wide / 64u; i += GROUP) {
      put_blocks(scale, i);
    }
    return;
  }
  for (var j = 2u * lid; j < wide; j += 2u * GROUP) {
    put_cache(numbers.cache_from + j, kept_value(scale, j), kept_value(scale, j + 1u), wide - j);
  }
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  if (numbers.shared_type != 0u) {
    prepare_row(lid);
  }
  let slices = numbers.plain / SLICE;
  let of_head = slices + (2u * numbers.r + SLICE - 1u) / SLICE;
  for (var task = group.x; task <= numbers.heads * of_head; task += groups.x) {
    if (task == numbers.heads * of_head) {
      keep_row(lid);
      continue;
    }
    let head = task / of_head;
    let slice = task % of_head;
    find_query(lid, head, slice);
    if (slice < slices) {
      let out = (slice * numbers.heads + head) * (numbers.rank + 2u * numbers.r);
      for (var i = lid; i < numbers.rank; i += GROUP) {
        q_words[out + i] = bitcast<u32>(product((head * numbers.rank + i) * slices + slice, 0u));
      }
    } else {
      put_turned(lid, head, slice);
    }
    workgroupBarrier();
  }
}
