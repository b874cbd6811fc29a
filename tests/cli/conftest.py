"""What tests of the command share."""

import io
import sys

import pytest


@pytest.fixture
def typed(monkeypatch):
    """What comes from stdin."""
    return lambda text: monkeypatch.setattr(sys, "stdin", io.StringIO(text))
