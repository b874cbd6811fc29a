"""Profiles: every op of a pass is there, and watching changes nothing."""

import re

import numpy as np
import pytest

from airllm.cli import commands
from airllm.engine.profile import profile
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory.budget import MemoryBudgetError
from tests.support.models import speaking_model

LAYERS = speaking_model.LAYERS


@pytest.mark.parametrize("rows", (1, 5))
def test_all_ops_of_all_passes_are_counted(folder, rows):
    with LayerWiseInferenceEngine(folder) as engine:
        before = engine.forward([1, 2, 3])
        found = profile(engine, rows, passes=3, context=7)
        assert np.array_equal(engine.forward([1, 2, 3]), before)
    calls = {(each.op, each.what): each.calls for each in found.spent}
    for part in ("attention.q", "attention.output", "feed_forward.gate", "feed_forward.down"):
        assert calls["linear", part] == 3 * LAYERS
    assert (
        calls["linear", "output"] == calls["embedding", "embedding"] == calls["rms_norm", "output_norm"] == 3
    )
    assert calls["attention", ""] == 3 * LAYERS and calls["apply_rope", ""] == 2 * 3 * LAYERS
    weights = {name: array.nbytes for name, array in speaking_model.weights().items()}
    output = next(each for each in found.spent if each.what == "output")
    assert output.nbytes == 3 * weights["lm_head.weight"] and output.format == "float16"
    assert sum(found.layers) < sum(each.seconds for each in found.spent) < found.seconds
    assert min(found.layers) > 0 and found.between > 0 and found.whole > 0


def test_a_model_that_is_read_part_by_part(tmp_path):
    folder = speaking_model.write(tmp_path)
    with pytest.raises(MemoryBudgetError) as refused:
        LayerWiseInferenceEngine(folder, max_memory=1)
    smallest = int(re.search(r"expected at least (\d+)", str(refused.value))[1])
    with LayerWiseInferenceEngine(folder, max_memory=smallest) as engine:
        found = profile(engine, passes=2, context=3)
    parts = {each.what for each in found.spent if each.op == "linear"}
    assert "output" in parts and "experts" not in parts


def test_lengths_that_cannot_be(folder):
    with LayerWiseInferenceEngine(folder) as engine:
        for wrong in ({"rows": 0}, {"passes": 0}, {"context": -1}, {"rows": 60, "context": 5}):
            with pytest.raises(ValueError, match="profile: "):
                profile(engine, **wrong)


def test_the_command(folder, capsys):
    assert commands.main(["profile", str(folder), "--passes", "2", "--after", "0"]) == 0
    text = capsys.readouterr().out
    memory = float(re.search(r"^memory: ([\d.]+) GB/s read", text, re.M)[1])
    lines = [line.split() for line in text.splitlines()]
    output = next(line for line in lines if line[:4] == ["linear", "output", "float16", "1"])
    rate, part = float(output[-2]), float(output[-1].removesuffix("%"))
    assert part == pytest.approx(100 * rate / memory, abs=0.6 + 5 / memory)
    assert sum(line[:1] == ["layer"] for line in lines) == LAYERS
    assert any(line[0] == "all" and line[-2:] == ["100.0", "%"] for line in lines if line)
    assert commands.main(["profile", str(folder), "--after", "100"]) == 1
    assert "expected at most the 64 of this engine's context" in capsys.readouterr().err
