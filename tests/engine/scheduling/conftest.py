"""What tests of the scheduler share."""

import pytest

from airllm.layer_engine import LayerWiseInferenceEngine
from tests.support.engines.scheduled import CONTEXT
from tests.support.models import speaking_model


@pytest.fixture(scope="module")
def long_folder(tmp_path_factory):
    """A tiny model with room for long texts."""
    return speaking_model.write(tmp_path_factory.mktemp("long"), max_position_embeddings=8192)


@pytest.fixture(scope="module")
def engine(long_folder):
    with LayerWiseInferenceEngine(long_folder, backend="cpp", context=CONTEXT) as found:
        yield found
