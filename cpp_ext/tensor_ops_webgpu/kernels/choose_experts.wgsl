// The indices of the `used` experts with the largest scores, and their weights, of each row of logits: see
// common/routing.inc of the GPU kernels. NaN comes last.
const MOST_EXPERTS = 1024u;
const MOST_USED = 64u;

var<workgroup> scores: array<f32, MOST_EXPERTS>;
var<workgroup> preferred: array<f32, MOST_EXPERTS>;
var<workgroup> of_groups: array<f32, MOST_EXPERTS>;
var<workgroup> chosen: array<f32, MOST_USED>;

// The sum of the two largest preferences of a group.
fn best_two(start: u32, count: u32) -> f32 {
  var first = negative_infinity();
  var second = negative_infinity();
  for (var j = start; j < start + count; j++) {
    let v = preferred[j];
    second = select(select(second, v, v > second), first, v > first);
    first = select(first, v, v > first);
  }
  return first + second;
}

// How many numbers come before number i, if the largest are first and equal ones keep their order.
fn rank_of_expert(i: u32) -> u32 {
  var rank = 0u;
  for (var j = 0u; j < numbers.experts; j++) {
    let before = preferred[j] > preferred[i] || (preferred[j] == preferred[i] && j < i);
    rank += select(0u, 1u, before);
  }
  return rank;
}
fn rank_of_group(i: u32) -> u32 {
  var rank = 0u;
  for (var j = 0u; j < numbers.groups; j++) {
    let before = of_groups[j] > of_groups[i] || (of_groups[j] == of_groups[i] && j < i);
    rank += select(0u, 1u, before);
  }
  return rank;
}

fn score_of(x: f32, top: f32, sum: f32) -> f32 {
  if (numbers.sigmoid != 0u) {
    return 1.0 / (1.0 + exponential(-x));
  }
  return exponential(x - top) / sum;
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let in_group = numbers.experts / numbers.groups;
  for (var row = group.x; row < numbers.rows; row += groups.x) {
    let start = row * numbers.experts;
    var largest = LOWEST;
    for (var e = lid; e < numbers.experts; e += GROUP) {
      largest = larger(largest, logits_at(start + e));
    }
    let top = group_max(lid, largest);
    var part = 0.0;
    for (var e = lid; e < numbers.experts; e += GROUP) {
      part += exponential(logits_at(start + e) - top);
    }
    let sum = group_sum(lid, part);
    for (var e = lid; e < numbers.experts; e += GROUP) {
      let score = score_of(logits_at(start + e), top, sum);
      let wanted = score + bias_at(e);
      scores[e] = score;
      preferred[e] = select(wanted, negative_infinity(), is_nan(wanted));
    }
    workgroupBarrier();
    if (numbers.groups > 1u) {
      for (var g = lid; g < numbers.groups; g += GROUP) {
        of_groups[g] = best_two(g * in_group, in_group);
      }
      workgroupBarrier();
      for (var e = lid; e < numbers.experts; e += GROUP) {
        if (rank_of_group(e / in_group) >= numbers.groups_used) {
          preferred[e] = negative_infinity();
        }
      }
      workgroupBarrier();
    }
    for (var e = lid; e < numbers.experts; e += GROUP) {
      let rank = rank_of_expert(e);
      if (rank < numbers.used) {
        ids_words[row * numbers.used + rank] = e;
        chosen[rank] = scores[e];
      }
    }
    workgroupBarrier();
    var total = 1.0;
    if (numbers.normalize != 0u) {
      total = 0.0;
      for (var i = 0u; i < numbers.used; i++) {
        total += chosen[i];
      }
    }
    for (var i = lid; i < numbers.used; i += GROUP) {
      weights_words[row * numbers.used + i] = bitcast<u32>(chosen[i] / total * numbers.scale);
    }
    workgroupBarrier();  // the next row writes `chosen`
  }
}
