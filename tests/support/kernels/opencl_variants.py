"""The devices of OpenCL here and the forms of its kernels, as cases of tests."""

import pytest

import tensor_ops_opencl as opencl
from airllm.tensor_ops import OPS
from tests.support.kernels.targets import without_repeats

NO_OPENCL = opencl.get_opencl_info()["reason"]
on_a_device = pytest.mark.skipif(bool(NO_OPENCL), reason=f"no OpenCL here: {NO_OPENCL}")
VARIANTS = [] if NO_OPENCL else opencl.variants()
KERNELS = {name: op for name, op in OPS.items() if name in opencl.__all__ and name != "dequantize"}
every_op = pytest.mark.parametrize("op", KERNELS.values(), ids=KERNELS)


def _of(variants):
    """Cases of the fixture `variant`."""
    cases = variants or [pytest.param("", marks=on_a_device)]
    return pytest.mark.parametrize("variant", cases, indirect=True)


every = _of(without_repeats(VARIANTS))
every_queue = _of([v for v in VARIANTS if "gpu kernels" not in v])
