// Loads a slice of b for matmul_tile.wgsl: rows of blocks that are read as words, four values at a time.
fn load_b(lid: u32, item: u32, col0: u32, k0: u32) {
  for (var n = lid; n < TILE * SLICE / 4u; n += GROUP) {
    let col = n / (SLICE / 4u);
    let k_in = n % (SLICE / 4u) * 4u;
    var w = vec4<f32>();
    if (col0 + col < numbers.n) {  // rows of blocks are whole slices
      w = quad((col0 + col) * (numbers.k / 32u) + (k0 + k_in) / 32u, (k0 + k_in) % 32u / 4u);
    }
    for (var j = 0u; j < 4u; j++) {
      b_slice[(k_in + j) * STRIDE + col] = w[j];
    }
  }
}
