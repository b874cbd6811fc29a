"""What those who write programs see of the package: types, in mypy and in help(), and objects printed."""

import importlib.metadata
import inspect
import json
import os
import pydoc
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from environment import REQUIRED

from airllm import AutoModel, PersistentKernel
from airllm.architectures.layer_spec import Rope
from airllm.architectures.model_config import ModelConfig
from airllm.layer_engine import LayerWiseInferenceEngine
from cpp_ext.commands import write_types
from tests.support.models import tiny_models

CONSUMER = Path(__file__).parents[1] / "data" / "typed" / "consumer.py"
LLAMA = tiny_models.DATA / "llama3"
# Its last three lines are wrong.
PROGRAM = """
import numpy as np
from typing_extensions import assert_type
from collections.abc import Iterator

import airllm
from airllm import AutoModel, LayerWiseInferenceEngine, PersistentKernel, backends

with AutoModel.from_pretrained("model.gguf", context=9) as model:
    assert_type(model, LayerWiseInferenceEngine)
    assert_type(model.generate("a", 3, temperature=0.5), str)
    assert_type(model.generate(["a", "b"]), list[str])
    assert_type(model.stream("a", seed=1), Iterator[str])
    assert_type(model.chat([{"role": "user", "content": "a"}], stop="."), str)
    assert_type(airllm.get_available_backends(), list[str])
    assert_type(backends.is_backend_available("cpp"), bool)
    logits: np.ndarray = PersistentKernel(model="model.gguf").step(1)
    model.generate("a", temprature=0.5)
    model.stream(1.5)
    airllm.get_avaliable_backends()
"""


def lacks() -> str:
    """What is not installed of what the next test needs."""
    packages = importlib.metadata.packages_distributions()
    return next((name for name in ("mypy", "airllm") if name not in packages), "")


@pytest.mark.skipif(bool(lacks()), reason=f"{lacks()} is not installed")
def test_a_users_program_is_checked_by_the_types_of_the_package(tmp_path):
    """From outside of the checkout, in which mypy reads another configuration, strictly."""
    (tmp_path / "program.py").write_text(PROGRAM)
    shutil.copy(CONSUMER, tmp_path)  # in which nothing is wrong
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--cache-dir",
        str(tmp_path),
        "program.py",
        "consumer.py",
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MYPY")}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert errors and all(line.startswith("program.py") for line in errors), done.stdout
    lines = PROGRAM.splitlines()
    wrong = {int(line.split(":")[1]) for line in errors}
    assert wrong == {len(lines) - 2, len(lines) - 1, len(lines)}, done.stdout
    for misspelt in ("temprature", "get_avaliable_backends"):
        assert any(misspelt in line for line in errors), done.stdout


@pytest.mark.skipif(bool(lacks()), reason=f"{lacks()} is not installed")
def test_pyrights_strict_mode_accepts_a_users_program(tmp_path):
    """It refuses what has no known type, so each public function that the program uses has one."""
    pyright = shutil.which("pyright", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if not pyright:
        assert "pyright" not in REQUIRED
        pytest.skip("pyright is not installed")
    shutil.copy(CONSUMER, tmp_path)
    (tmp_path / "wrong.py").write_text("from airllm import tensor_ops\n\ntensor_ops.silu(1, approximate=2)\n")
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}))
    command = [pyright, "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    errors = json.loads(done.stdout)["generalDiagnostics"]
    assert {Path(each["file"]).name for each in errors} == {"wrong.py"}, done.stdout


def test_the_types_of_the_ops_are_those_of_their_declarations():
    assert write_types.STUB.read_text() == write_types.written(), "run: python setup.py write_types"


def test_help_shows_types():
    for method in ("generate", "stream", "chat", "stream_chat", "forward", "memory_estimate", "new_cache"):
        signature = inspect.signature(getattr(LayerWiseInferenceEngine, method))
        given = [p for name, p in signature.parameters.items() if name != "self"]
        assert all(p.annotation is not p.empty for p in given) and signature.return_annotation, method
    shown = pydoc.plain(pydoc.render_doc(LayerWiseInferenceEngine.generate))
    assert "temperature: 'float' = 0.0" in shown and ") -> 'str | list[str]'" in shown


def test_automodel_says_what_to_call():
    for arguments in ((), ("model.gguf",)):
        with pytest.raises(TypeError, match=r"call AutoModel\.from_pretrained\("):
            AutoModel(*arguments)


def test_objects_say_what_they_are_in_a_line(tmp_path, folder):
    with LayerWiseInferenceEngine(
        LLAMA, backend="python", cache_dtype="f32", kv_cache_dir=tmp_path
    ) as engine:
        assert repr(engine).startswith("<LayerWiseInferenceEngine llama3: llama, 3 layers of 32, NumPy ")
        assert repr(engine).endswith(", context 128>")
        assert repr(engine.model).startswith("<Model llama3: llama, 3 layers of 32, <KernelBackend python: ")
        cache = engine.new_cache("talk")
        engine.forward([1, 2, 3], cache)
        path = tmp_path / "talk.kv"
        assert repr(cache) == f"<FileCache: 3 of 128 tokens, f32, 3 layers, {path}>"
        assert path.is_file()
    assert repr(engine) == "<LayerWiseInferenceEngine llama3: closed>"
    with AutoModel.from_pretrained(folder) as speaking:
        assert repr(speaking.new_cache()).startswith("<Cache: 0 of ")
        tokenizer = speaking.tokenizer
        assert repr(tokenizer).startswith(f"<Tokenizer: {len(tokenizer)} tokens, bos_id={tokenizer.bos_id}, ")
        said = [speaking, speaking.model, tokenizer, PersistentKernel(model=speaking)]
        if speaking.chat_template:
            said.append(speaking.chat_template)
            assert repr(speaking.chat_template).endswith(f" of {speaking.chat_template.path}>")
        assert not [each for each in map(repr, said) if "\n" in each or " object at 0x" in each]


def test_a_configuration_is_shown_without_defaults_and_repetitions():
    config = ModelConfig(
        architecture="gemma3", layers=30, width=576, heads=9, kv_heads=3, head_dim=64, feed_forward=1536,
        vocabulary=49152, context=8192, rope=Rope(1e5, 64), norm_eps=1e-5, activation="silu",
        attention_scale=0.125, windows=(512,) * 5 + (None,) * 24 + (512,), qk_norm="head",
    )  # fmt: skip
    assert "windows=(512,) * 5 + (None,) * 24 + (512,), qk_norm='head')" in repr(config)
    assert "moe_layers" not in repr(config) and "post_norms" not in repr(config)
    assert eval(repr(config), {"ModelConfig": ModelConfig, "Rope": Rope}) == config
