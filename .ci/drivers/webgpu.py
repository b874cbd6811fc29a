# Debian: /usr/share/vulkan/icd.d/lvp_icd*.json mesa-vulkan-drivers
import struct

from wgpu.utils.compute import compute_with_buffers

DOUBLED = """
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(1) fn main(@builtin(global_invocation_id) at: vec3<u32>) { y[at.x] = 2.0 * x[at.x]; }
"""
found = compute_with_buffers({0: struct.pack("4f", 1, 2, 3, 4)}, {1: (4, "f")}, DOUBLED, n=4)
assert found[1].tolist() == [2, 4, 6, 8]
