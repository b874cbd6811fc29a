// The row that a work-group multiplies, too wide for memory of its own: in a part of `own` that only it uses.
var<private> row_start: u32;

fn begin_row(group: u32) {
  row_start = group * numbers.k;
}

fn put_row(i: u32, value: f32) {
  own_words[row_start + i] = bitcast<u32>(value);
}
fn row_at(i: u32) -> f32 {
  return bitcast<f32>(own_words[row_start + i]);
}
fn a_quad(i: u32) -> vec4<f32> {
  return vec4<f32>(row_at(i), row_at(i + 1u), row_at(i + 2u), row_at(i + 3u));
}

fn finish_row() {
  storageBarrier();
}
