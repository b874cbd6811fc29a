// out = a @ b * scale + bias, a: batch x m x k, b: batch x k x n or, transposed, n x k, of floats or blocks.
// A work-group of 16 x 16 computes 64 x 64 values of out, each invocation 4 x 4 of them. Products are summed
// in blocks of BLOCK, and the blocks at the end: a single running sum loses a digit with every tenfold k.
// tile_of_elements.wgsl or tile_of_words.wgsl loads a slice of b.
const TILE = 64u;
const SLICE = 16u;
const BLOCK = 256u;

var<workgroup> a_slice: array<f32, 1088>;  // SLICE x (TILE + 4): the 4 spread the writes over the banks
var<workgroup> b_slice: array<f32, 1088>;
const STRIDE = 68u;

fn load_a(n: u32, item: u32, row0: u32, k0: u32) {
  let row = row0 + n / SLICE;
  let k = k0 + n % SLICE;
  var v = 0.0;
  if (row < numbers.m && k < numbers.k) {
    v = a_at((item * numbers.m + row) * numbers.k + k);
  }
  a_slice[n % SLICE * STRIDE + n / SLICE] = v;
}

fn multiply(kk: u32, y: u32, x: u32, block: ptr<function, array<vec4<f32>, 4>>) {
  let a = kk * STRIDE + y;
  let b = kk * STRIDE + x;
  let right = vec4<f32>(b_slice[b], b_slice[b + 1u], b_slice[b + 2u], b_slice[b + 3u]);
  (*block)[0] += a_slice[a] * right;
  (*block)[1] += a_slice[a + 1u] * right;
  (*block)[2] += a_slice[a + 2u] * right;
  (*block)[3] += a_slice[a + 3u] * right;
}

fn finished(sum: f32, col: u32) -> f32 {
  return sum * numbers.scale + bias_at(col);
}

fn store(item: u32, row: u32, col: u32, sums: vec4<f32>) {
  if (row >= numbers.m || col >= numbers.n) {
    return;
  }
  let i = (item * numbers.m + row) * numbers.n + col;
  put_out(i, finished(sums.x, col), finished(sums.y, col + 1u), numbers.n - col);
  if (col + 2u < numbers.n) {
    put_out(i + 2u, finished(sums.z, col + 2u), finished(sums.w, col + 3u), numbers.n - col - 2u);
  }
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let down = (numbers.m + TILE - 1u) / TILE;
  let across = (numbers.n + TILE - 1u) / TILE;
  let y = lid / 16u * 4u;
  let x = lid % 16u * 4u;
  for (var task = group.x; task < numbers.batch * down * across; task += groups.x) {
    let item = task / (down * across);
    let row0 = task / across % down * TILE;
    let col0 = task % across * TILE;
    var sums = array<vec4<f32>, 4>();
    var block = array<vec4<f32>, 4>();
    for (var k0 = 0u; k0 < numbers.k; k0 += SLICE) {
      workgroupBarrier();
      for (var n = lid; n < TILE * SLICE; n += GROUP) {
        load_a(n, item, row0, k0);
      }
      load_b(lid, item, col0, k0);
      workgroupBarrier();
      for (var kk = 0u; kk < SLICE; kk += 4u) {
        multiply(kk, y, x, &block);
        multiply(kk + 1u, y, x, &block);
        multiply(kk + 2u, y, x, &block);
        multiply(kk + 3u, y, x, &block);
      }
      if ((k0 + SLICE) % BLOCK == 0u || k0 + SLICE >= numbers.k) {
        for (var i = 0u; i < 4u; i++) {
          sums[i] += block[i];
          block[i] = vec4<f32>();
        }
      }
    }
    for (var i = 0u; i < 4u; i++) {
      store(item, row0 + y + i, col0 + x, sums[i]);
    }
  }
}
