"""What tests of ops' arguments share."""

import pytest

from airllm import tensor_ops
from airllm.backends import available


@pytest.fixture(params=available())
def backend(request):
    with tensor_ops.use_backend(request.param) as used:
        yield used
