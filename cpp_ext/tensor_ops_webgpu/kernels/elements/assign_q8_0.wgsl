// Rows of x, floats or blocks of q8_0, as rows of such blocks. Work-groups take rows of `d` blocks, invocations
// take blocks. Starts are in elements: of blocks, bytes. A block is 17 halves of words, and begins at an even
// address, so neighbouring blocks may share a word, which is written half by half.
const VALUES = 32u;
const HALVES = 17u;

fn put_half(i: u32, bits: u32) {
  let shift = (i & 1u) * 16u;
  atomicAnd(&out_words[i / 2u], ~(0xffffu << shift));
  atomicOr(&out_words[i / 2u], bits << shift);
}

fn put_block(at: u32, to: u32) {
  var values = array<f32, 32>();
  var top = 0.0;
  for (var j = 0u; j < VALUES; j++) {
    values[j] = x_at(at + j * numbers.x_step);
    top = max(top, abs(values[j]));
  }
  let scale = top / 127.0;
  put_half(to, f16_bits(scale));
  for (var j = 0u; j < HALVES - 1u; j++) {
    put_half(to + 1u + j, code_pair(values[2u * j], values[2u * j + 1u], scale));
  }
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  for (var row = group.x; row < numbers.rows; row += groups.x) {
    let start = numbers.x_from + x_start(row);
    let to = (numbers.out_from + out_start(row)) / 2u;
    for (var block = lid; block < numbers.d; block += GROUP) {
      if (numbers.x_type == BOOL) {
        for (var j = 0u; j < HALVES; j++) {
          let i = start / 2u + block * HALVES + j;
          put_half(to + block * HALVES + j, (x_words[i / 2u] >> ((i & 1u) * 16u)) & 0xffffu);
        }
      } else {
        put_block(start + block * VALUES * numbers.x_step, to + block * HALVES);
      }
    }
  }
}
