// Loads a slice of b for matmul_tile.wgsl, element by element.
fn load_b(lid: u32, item: u32, col0: u32, k0: u32) {
  let transposed = numbers.transposed != 0u;
  for (var n = lid; n < TILE * SLICE; n += GROUP) {
    let col_in = select(n % TILE, n / SLICE, transposed);
    let k_in = select(n / TILE, n % SLICE, transposed);
    let col = col0 + col_in;
    let k = k0 + k_in;
    var w = 0.0;
    if (col < numbers.n && k < numbers.k) {
      w = b_at(item * numbers.b_step + select(k * numbers.n + col, col * numbers.k + k, transposed));
    }
    b_slice[k_in * STRIDE + col_in] = w;
  }
}
