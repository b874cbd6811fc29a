"""`airllm info`: the machine, a model, and what was configured."""

import json
import re

import pytest
from command_line import run

from airllm.architectures import types_of_folders
from airllm.backends import config, describe
from tests.support.models import speaking_model


def test_info_of_this_machine(capsys):
    assert run("info") == 0
    out = capsys.readouterr().out
    assert "Active backend: " in out and "python     available: NumPy" in out
    assert "\nModels:         bert, cohere2, deepseek_v2, deepseek_v3, kimi_k2, kimi_k25, " in out
    assert run("info", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert "python" in found["available_backends"] and found["model_types"] == types_of_folders()


def test_info_of_a_model(folder, capsys):
    assert run("info", folder) == 0
    lines = capsys.readouterr().out.splitlines()
    weights = speaking_model.weights().values()
    assert any("llama, 2 layers of width 64" in line for line in lines)
    assert any(line.startswith("Memory: ") and "with a context of 64" in line for line in lines)
    assert any("4 heads of 16, 2 for keys and values" in line for line in lines)
    assert any(re.match(rf" *float16 +{len(weights)} tensors, ", line) for line in lines)
    assert any(f"{sum(each.size for each in weights) / 1000:.1f} k in" in line for line in lines)
    assert run("info", folder, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["config"]["layers"] == 2 and found["context"] == found["trained_context"] == 64
    values = sum(each.size for each in weights)
    assert found["formats"] == [
        {"name": "float16", "tensors": len(weights), "values": values, "bytes": 2 * values}
    ]


@pytest.mark.parametrize(
    ("file", "wish"),
    (
        ({"backend_priority": ["numpy", "cpp"]}, "the first that runs of python, cpp"),
        ({"preferred_backend": "python"}, "python; if it cannot run, the first of cuda, rocm, mlx, "),
        ({"force_backend": "python"}, "python and no other"),
    ),
)
def test_info_says_what_was_configured_and_where(file, wish, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(file))
    line = describe._describe_config(config.read(path))
    assert line.startswith(wish) and line.endswith(f" ({path})") and "{" not in line


def test_info_tells_the_order_in_the_file_and_what_it_stands_for(tmp_path, monkeypatch, capsys):
    file = tmp_path / "backend.json"
    file.write_text("{}")
    monkeypatch.setenv("AIRLLM_CONFIG", str(file))
    settings = config.load_file()
    assert describe._describe_config(settings) == (
        "the first that runs of cuda, rocm, mlx, opencl, webgpu, cpp, python; "
        f"cuda, opencl, cpp, python, as shipped, stands for all ({file})"
    )
    file.write_text('{"backend_priority": ["cpp", "python"]}')
    assert describe._describe_config(config.load_file()) == f"the first that runs of cpp, python ({file})"
