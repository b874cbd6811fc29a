"""A short run of the soak; its file has the command of the whole one."""

import importlib.util
from pathlib import Path

SOAK = Path(__file__).with_name("soak.py")


def test_bad_clients_leave_nothing_behind(model):
    spec = importlib.util.spec_from_file_location("soak", SOAK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    done = module.soak(model, 100)
    assert done["whole"] > 10 and done["stream"] > 10 and done["left"] > 5 and done["nonsense"] > 2
    assert done["grown_mib"] < 24, done
