// The row that a work-group multiplies, in memory of its own.
var<workgroup> own: array<f32, 3840>;

fn begin_row(group: u32) {}

fn put_row(i: u32, value: f32) {
  own[i] = value;
}
fn row_at(i: u32) -> f32 {
  return own[i];
}
fn a_quad(i: u32) -> vec4<f32> {
  return vec4<f32>(own[i], own[i + 1u], own[i + 2u], own[i + 3u]);
}

fn finish_row() {
  workgroupBarrier();
}
