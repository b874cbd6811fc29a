"""What tests of the configuration share."""

import pytest

from airllm.backends import config


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
