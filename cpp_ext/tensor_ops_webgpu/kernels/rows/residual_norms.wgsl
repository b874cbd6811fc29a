// The sums and norms between two halves of a layer: see residual_norms of the GPU kernels
// (common/rows/residual.inc). An invocation reads only those elements of `total` that it wrote itself.
fn total_at(i: u32) -> f32 {
  return bitcast<f32>(total_words[i]);
}

const X = 0u;
const Y = 1u;
const TOTAL = 2u;
fn value_of(kind: u32, i: u32) -> f32 {
  switch kind {
    case X: { return x_at(i); }
    case Y: { return y_at(i); }
    default: { return total_at(i); }
  }
}

// 1 / sqrt(the mean of (v - mean)^2 + eps) of a row.
fn inverse_deviation(lid: u32, kind: u32, start: u32, mean: f32) -> f32 {
  var squares = Sum();
  for (var j = lid; j < numbers.d; j += GROUP) {
    let v = value_of(kind, start + j) - mean;
    add(&squares, v * v);
  }
  return 1.0 / sqrt(group_total(lid, squares) / f32(numbers.d) + numbers.eps);
}

fn mean_of(lid: u32, start: u32) -> f32 {
  var sum = Sum();
  for (var j = lid; j < numbers.d; j += GROUP) {
    add(&sum, total_at(start + j));
  }
  return group_total(lid, sum) / f32(numbers.d);
}

// The sum of x and y, each by its norm if it has one.
fn sum_at(start: u32, j: u32, x_scale: f32, y_scale: f32) -> f32 {
  var v = x_at(start + j);
  if (numbers.x_norm_type != 0u) {
    v = v * x_scale * x_norm_at(j);
  }
  if (numbers.y_type == 0u) {
    return v;
  }
  if (numbers.y_norm_type == 0u) {
    return v + y_at(start + j);
  }
  return v + y_at(start + j) * y_scale * y_norm_at(j);
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  for (var row = group.x; row < numbers.rows; row += groups.x) {
    let start = row * numbers.d;
    var x_scale = 1.0;
    if (numbers.x_norm_type != 0u) {
      x_scale = inverse_deviation(lid, X, start, 0.0);
    }
    var y_scale = 1.0;
    if (numbers.y_norm_type != 0u) {
      y_scale = inverse_deviation(lid, Y, start, 0.0);
    }
    for (var j = lid; j < numbers.d; j += GROUP) {
      total_words[start + j] = bitcast<u32>(sum_at(start, j, x_scale, y_scale));
    }
    var scale = numbers.factor;
    if (numbers.post_type != 0u) {
      scale *= inverse_deviation(lid, TOTAL, start, 0.0);
    }
    for (var j = lid; j < numbers.d; j += GROUP) {
      var v = total_at(start + j) * scale;
      if (numbers.post_type != 0u) {
        v *= post_at(j);
      }
      v += residual_at(start + j);
      if (numbers.scale_type != 0u) {
        v *= scale_at(0u);
      }
      total_words[start + j] = bitcast<u32>(v);
    }
    if (numbers.count == 0u) {
      continue;
    }
    var mean = 0.0;
    if (numbers.centered != 0u) {
      mean = mean_of(lid, start);
    }
    let total_scale = inverse_deviation(lid, TOTAL, start, mean);
    for (var n = 0u; n < numbers.count; n++) {
      for (var j = lid; j < numbers.d; j += GROUP) {
        var v = (total_at(start + j) - mean) * total_scale * norms_at(n * numbers.d + j);
        if (numbers.biased != 0u) {
          v += norms_at(numbers.d + j);
        }
        normed_words[(n * numbers.rows + row) * numbers.d + j] = bitcast<u32>(v);
      }
    }
  }
}
