// exp, accurate to a few units in the last place on every device: WGSL's own may be off by 3 + 2 |x| of them.
// With x = n ln 2 + r it is 2^n exp(r); ln 2 has two parts, and n times the first is exact.
fn exponential(x: f32) -> f32 {
  if (is_nan(x)) {
    return x;
  }
  if (x < -104.0) {
    return 0.0;
  }
  if (x > 88.73) {
    return -negative_infinity();
  }
  let n = round(x * 1.44269504);
  let r = x - n * 0.693359375 + n * 2.12194440e-4;
  var p = 1.9875691500e-4;
  p = p * r + 1.3981999507e-3;
  p = p * r + 8.3334519073e-3;
  p = p * r + 4.1665795894e-2;
  p = p * r + 1.6666665459e-1;
  p = p * r + 5.0000001201e-1;
  let low = floor(n * 0.5);  // 2^n itself may not fit an f32
  return (p * r * r + r + 1.0) * power_of_two(low) * power_of_two(n - low);
}

fn power_of_two(n: f32) -> f32 {
  return bitcast<f32>(u32(i32(n) + 127) << 23u);
}

// activation(gate) * up: see gated_value of the GPU kernels' formulas.h. NaN stays.
fn gated_value(activation: u32, gate: f32, up: f32, limit: f32, alpha: f32) -> f32 {
  switch activation {
    case 0u: { return gate; }
    case 1u: { return silu(gate) * up; }
    case 2u: { return gelu(gate) * up; }
    case 3u: { return gelu_erf(gate) * up; }
    case 5u: { return select(gate * gate, 0.0, gate < 0.0) * up; }
    default: {
      let v = select(gate, limit, gate > limit);
      let w = select(select(up, limit, up > limit), -limit, up < -limit);
      return v / (1.0 + exponential(-alpha * v)) * (w + 1.0);
    }
  }
}

fn silu(x: f32) -> f32 {
  return x / (1.0 + exponential(-x));
}

// x (1 + tanh u) / 2, written as x / (1 + exp(-2u)): no cancellation for negative x, no overflow to NaN.
fn gelu(x: f32) -> f32 {
  return x / (1.0 + exponential(x * (-1.5957691216057308 - 0.07135481627152966 * x * x)));
}

// x / 2 * erfc(-x / sqrt 2). With z = |x| / sqrt 2, erfc(z) = exp(-z^2) erfcx(z), and erfcx is a polynomial
// in t = 1 / (1 + 0.4 z), as in gpu_kernels/common/elements/formulas.h. x^2 / 2 is split in two parts, the first
// exact, since exp turns an absolute error into a relative one.
fn gelu_erf(x: f32) -> f32 {
  let size = min(abs(x), 15.0);
  let high = bitcast<f32>(bitcast<u32>(size) & 0xfffff000u);
  let t = 1.0 / (1.0 + 0.28284271 * size);
  var p = -0.02772447094;
  p = p * t + 0.1879071295;
  p = p * t - 0.4751781225;
  p = p * t + 0.5161172748;
  p = p * t - 0.2585077882;
  p = p * t + 0.2583016455;
  p = p * t + 0.1343924999;
  p = p * t + 0.2139202505;
  p = p * t + 0.2250707299;
  p = p * t + 0.2257008851;
  let rest = -0.5 * (size - high) * (size + high);
  let tail = p * t * exponential(-0.5 * high * high) * exponential(rest);
  if (x < 0.0) {
    return 0.5 * x * tail;
  }
  return 0.5 * x * (2.0 - tail);
}
