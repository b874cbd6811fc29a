// Sums of a work-group whose LANES invocations take a column together: each puts its parts into `parts`, of the
// column's own row and of the row that this gates.
const COLUMNS = GROUP / LANES;

var<workgroup> parts: array<vec2<f32>, GROUP>;

fn column_sums(column: u32) -> vec2<f32> {
  var sum = vec2<f32>();
  for (var j = 0u; j < LANES; j++) {
    sum += parts[column * LANES + j];
  }
  return sum;
}
