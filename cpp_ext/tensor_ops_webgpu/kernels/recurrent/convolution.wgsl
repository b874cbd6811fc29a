// What kernels with a convolution share: place_of and input_at of the GPU kernels (common/recurrent/recurrent.inc).
fn place_of(channel: u32, key_heads: u32, key_dim: u32, wide: u32) -> u32 {
  if (key_heads == 0u) {
    return channel;
  }
  let keys = key_heads * key_dim;
  let one = 2u * (key_dim + wide);
  if (channel < 2u * keys) {
    return channel % keys / key_dim * one + channel / keys * key_dim + channel % key_dim;
  }
  return (channel - 2u * keys) / wide * one + 2u * key_dim + (channel - 2u * keys) % wide;
}
