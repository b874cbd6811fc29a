"""Which drivers compute nothing on this CPU, a line each: its backend's name, and why.

A CPU may be newer than all that compile for it, and no change of this repository cures that. Apart from
what is tested, whose own faults must not look like that. Each in a process of its own: a driver may end it.
"""

import subprocess
import sys

OPENCL = """
import pyopencl as cl
reasons = []
for device in (device for platform in cl.get_platforms() for device in platform.get_devices()):
    try:
        cl.Program(cl.Context([device]), "kernel void nothing(void) {}").build(cache_dir=False)
        break
    except cl.RuntimeError as error:
        reasons.append(f"{device.name}: {error}")
else:
    raise SystemExit("; ".join(reasons) or "no OpenCL device")
"""
MLX = """
import mlx.core as mx
assert mx.compile(lambda x: mx.exp(x) - 1)(mx.zeros(8)).tolist() == [0] * 8
"""
WEBGPU = """
import struct
from wgpu.utils.compute import compute_with_buffers
doubled = '''
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(1) fn main(@builtin(global_invocation_id) at: vec3<u32>) { y[at.x] = 2.0 * x[at.x]; }
'''
found = compute_with_buffers({0: struct.pack("4f", 1, 2, 3, 4)}, {1: (4, "f")}, doubled, n=4)
assert found[1].tolist() == [2, 4, 6, 8]
"""
PROGRAMS = {"opencl": OPENCL, "mlx": MLX, "webgpu": WEBGPU}

for name, program in PROGRAMS.items():
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    if done.returncode:
        why = " ".join(done.stderr.split())[-400:] or f"its process ends with status {done.returncode}"
        print(name, why)
