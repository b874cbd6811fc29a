// Which experts a row of logits chooses: see choose_row of common/experts/choice.inc of the GPU kernels. NaN comes last.
const MOST_EXPERTS = 1024u;
const MOST_USED = 64u;

var<workgroup> preferred: array<f32, MOST_EXPERTS>;
var<workgroup> of_groups: array<f32, MOST_EXPERTS>;
var<workgroup> chosen: array<u32, MOST_USED>;
var<workgroup> share: array<f32, MOST_USED>;

// The largest preference of a group, or the sum of the two largest.
fn best_of(start: u32, count: u32) -> f32 {
  var first = negative_infinity();
  var second = negative_infinity();
  for (var j = start; j < start + count; j++) {
    let v = preferred[j];
    second = select(select(second, v, v > second), first, v > first);
    first = select(first, v, v > first);
  }
  return select(first, first + second, numbers.group_best > 1u);
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

// Writes `chosen` and `share`, the experts' weights, of the logits from `start` on.
fn choose_row(lid: u32, start: u32) {
  let in_group = numbers.experts / numbers.groups;
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
    let wanted = score_of(logits_at(start + e), top, sum) + selection_bias_at(e);
    preferred[e] = select(wanted, negative_infinity(), is_nan(wanted));
  }
  workgroupBarrier();
  if (numbers.groups > 1u) {
    for (var g = lid; g < numbers.groups; g += GROUP) {
      of_groups[g] = best_of(g * in_group, in_group);
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
      chosen[rank] = e;
      share[rank] = score_of(logits_at(start + e), top, sum);
    }
  }
  workgroupBarrier();
  var total = 1.0;
  if (numbers.normalize != 0u) {
    total = 0.0;
    for (var i = 0u; i < numbers.used; i++) {
      total += share[i];
    }
  }
  workgroupBarrier();  // all have read the weights
  for (var i = lid; i < numbers.used; i += GROUP) {
    share[i] = share[i] / total * numbers.scale;
  }
  workgroupBarrier();
}
