// The row that a work-group multiplies is the sum (a by the norm `post` * factor + residual) * scale, or with
// `norm` the norm of that, which the work-group computes for itself; the first one also writes them: see
// common/linear/normed_row.h of the GPU kernels. own_row.wgsl or wide_row.wgsl says where the row is.
fn deviation(lid: u32, squares: Sum) -> f32 {
  return 1.0 / sqrt(group_total(lid, squares) / f32(numbers.k) + numbers.eps);
}

fn prepare_row(lid: u32, group: u32) {
  begin_row(group);
  var of_x = numbers.factor;
  if (numbers.post_type != 0u) {
    var squares = Sum();
    for (var j = lid; j < numbers.k; j += GROUP) {
      add(&squares, a_at(j) * a_at(j));
    }
    of_x *= deviation(lid, squares);
  }
  var squares = Sum();
  for (var j = lid; j < numbers.k; j += GROUP) {
    var v = a_at(j) * of_x;
    if (numbers.post_type != 0u) {
      v *= post_at(j);
    }
    v += residual_at(j);
    if (numbers.scale_type != 0u) {
      v *= scale_at(0u);
    }
    put_row(j, v);
    if (group == 0u) {
      rows_words[j] = bitcast<u32>(v);
    }
    add(&squares, v * v);
  }
  if (numbers.norm_type != 0u) {
    let of_sum = deviation(lid, squares);
    for (var j = lid; j < numbers.k; j += GROUP) {
      let v = row_at(j) * of_sum * norm_at(j);
      put_row(j, v);
      if (group == 0u) {
        rows_words[numbers.apart + j] = bitcast<u32>(v);
      }
    }
  }
  finish_row();
}
