# Debian: /etc/OpenCL/vendors/pocl.icd pocl-opencl-icd
# It goes by a CPU's instruction sets. PyPI's PoCL, which pip brings, goes by its name and must know that.
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
