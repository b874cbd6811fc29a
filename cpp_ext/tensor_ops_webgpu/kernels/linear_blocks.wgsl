// out = a @ b^T * scale + bias for few rows of a, of float32, where b has blocks of 32 values, read as words.
// LANES invocations take a row of b together, a block at a time.
const COLUMNS = GROUP / LANES;

var<workgroup> parts: array<f32, GROUP>;

fn a_quad(i: u32) -> vec4<f32> {
  return bitcast<vec4<f32>>(vec4<u32>(a_words[i], a_words[i + 1u], a_words[i + 2u], a_words[i + 3u]));
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let blocks = numbers.k / 32u;
  for (var first = COLUMNS * group.x; first < numbers.n; first += COLUMNS * groups.x) {
    let col = first + lid / LANES;
    for (var row = 0u; row < numbers.m; row++) {
      var sum = 0.0;
      if (col < numbers.n) {
        for (var block = lid % LANES; block < blocks; block += LANES) {
          sum += product((col * blocks + block) * BLOCK_BYTES, row * numbers.k + block * 32u);
        }
      }
      workgroupBarrier();
      parts[lid] = sum;
      workgroupBarrier();
      if (lid < COLUMNS / 2u) {
        var pair = vec2<f32>();
        for (var j = 0u; j < LANES; j++) {
          pair += vec2<f32>(parts[2u * lid * LANES + j], parts[(2u * lid + 1u) * LANES + j]);
        }
        let out = first + 2u * lid;
        if (out < numbers.n) {
          pair = pair * numbers.scale + vec2<f32>(bias_at(out), bias_at(out + 1u));
          put_out(row * numbers.n + out, pair.x, pair.y, numbers.n - out);
        }
      }
    }
  }
}
