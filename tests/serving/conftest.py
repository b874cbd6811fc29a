"""One tiny model, one server of it, and one engine that serves nobody, for the tests of a file."""

import pytest
import serving

from airllm.engine.engine import LayerWiseInferenceEngine


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return serving.write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(model):
    with serving.serve(model) as server:
        yield server


@pytest.fixture(scope="module")
def alone(model):
    """An engine of its own, whose texts the server's must equal."""
    with LayerWiseInferenceEngine(model, threads=1) as engine:
        yield engine
