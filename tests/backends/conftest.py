"""What tests of the configuration share, and those of the C++ backend's module."""

import pytest
from environment import needs

from airllm.backends import config, open_backend


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A checkout and a user's configuration folder of this test's own, both still without a file."""
    for name in ("AIRLLM_BACKEND", "AIRLLM_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    checkout = tmp_path / "checkout"
    (tmp_path / "home" / "airllm").mkdir(parents=True)
    checkout.mkdir()
    (checkout / "setup.py").touch()
    monkeypatch.setattr(config, "CHECKOUT", checkout)
    return {
        "AIRLLM_CONFIG": tmp_path / "named.json",
        "checkout": checkout / "backend.json",
        "user": tmp_path / "home" / "airllm" / "backend.json",
    }


@pytest.fixture
def binary():
    """The file of the C++ backend's module."""
    module = open_backend("cpp").module
    needs("cpp", module, "tensor_ops_cpp is not built")
    return module.__file__
