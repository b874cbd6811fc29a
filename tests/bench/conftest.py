"""What tests of benchmarks share."""

import pytest


@pytest.fixture(scope="module")
def no_vulkan():
    """A run times every backend that runs here, and WebGPU on a processor takes half a minute for that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VK_DRIVER_FILES", "/nowhere")
        yield
