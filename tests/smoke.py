"""Checks an installed airllm in seconds: `python tests/smoke.py [BACKEND] [--extras models serve ...]`.

The backend is cpp unless another one is named. Without `--extras` it needs nothing but airllm's own
dependencies, so it runs after each wheel's build; `python -m tests.compatibility` runs it with the oldest and
the newest version of each dependency. The truth is the NumPy definition of an op, in float64.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import airllm
from airllm import AutoModel, backends, tensor_ops

MODEL = Path(__file__).resolve().parent / "data" / "tiny_models" / "llama3"
AIRLLM = [sys.executable, "-m", "airllm"]
random = np.random.default_rng(7)
OPS: dict[str, tuple[Any, ...]] = {
    "rms_norm": ((5, 96), (96,)),
    "softmax": ((5, 96),),
    "gelu": ((3, 5, 31),),
    "swiglu": ((4, 64), (4, 64)),
    "matmul": ((3, 40), (40, 7)),
    "attention": ((4, 6, 32), (2, 9, 32), (2, 9, 32)),
}
BOUNDS = {np.float32: 1e-5, np.float16: 4e-3, ml_dtypes.bfloat16: 4e-2}


def check_ops(backend: str) -> None:
    for name, shapes in OPS.items():
        values = [random.standard_normal(shape) for shape in shapes]
        for dtype, bound in BOUNDS.items():
            arrays = [each.astype(dtype) for each in values]
            op = getattr(tensor_ops, name)
            truth = op(*(each.astype(np.float64) for each in arrays))
            error = np.abs(op(*arrays, backend=backend).astype(np.float64) - truth).max()
            assert error <= bound * np.abs(truth).max(), f"{name} of {np.dtype(dtype)} is wrong by {error}"


def check_stored_weights(backend: str) -> None:
    x, weight = random.standard_normal((3, 256)).astype(np.float32), random.standard_normal((24, 256))
    for name in ("q8_0", "q4_0", "q4_k", "q6_k"):
        stored = tensor_ops.quantize(weight.astype(np.float32), name)
        truth = x @ stored.dequantize().T
        error = np.abs(tensor_ops.linear(x, stored, backend=backend) - truth).max()
        assert error <= 2e-2 * np.abs(truth).max(), f"linear of {name} is wrong by {error}"


def check_model(backend: str) -> None:
    tokens = [1, 5, 3, 9, 2]
    found = {}
    for name in {backend, "python"}:
        with AutoModel.from_pretrained(str(MODEL), backend=name, compute="float32", context=64) as model:
            found[name] = model.forward(tokens)
    assert np.allclose(found[backend], found["python"], atol=1e-3 * np.ptp(found["python"]))


def check_command(backend: str) -> None:
    assert backend in json.loads(run("info", "--json"))["available_backends"]


def run(*arguments: str) -> str:
    """What the command `airllm` prints."""
    done = subprocess.run([*AIRLLM, *arguments], capture_output=True, text=True, timeout=120, input="")
    assert done.returncode == 0, f"airllm {arguments}: {done.stdout}{done.stderr}"
    return done.stdout


# ---- what extras install ----


def speaking_model(folder: Path) -> Path:
    """The tiny model with a chat template and a tokenizer of its 80 tokens, of which the last ends a text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    shutil.copytree(MODEL, folder)
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet())[:78], "HE"]
    made = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[("H", "E")]))
    made.add_special_tokens([AddedToken("<end>", special=True)])
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.save(str(folder / "tokenizer.json"))
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    config = {"chat_template": template, "eos_token": "<end>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def check_text(backend: str, folder: Path) -> None:
    """Text of the folder and of its GGUF file, by commands, and a chat."""
    model, file = str(speaking_model(folder / "model")), str(folder / "model.gguf")
    run("quantize", model, file, "--format", "f16")
    options = ("--backend", backend, "--raw", "-n", "6", "--temperature", "0", "--json")
    texts = [json.loads(run("generate", name, "HELLO", *options))["text"] for name in (model, file)]
    assert len(texts[0]) == 6 and texts[0] == texts[1], texts
    with AutoModel.from_pretrained(model, backend=backend) as engine:
        engine.chat([{"role": "user", "content": "HELLO"}], 3)
        assert engine.statistics.new_tokens == 3
    assert "llama" in run("info", file)
    run("chat", file, "--backend", backend)  # to which nobody says anything


def check_server(backend: str, folder: Path) -> None:
    """JSON that a client enforces, from a server at a free port."""
    model = str(speaking_model(folder / "model"))
    command = [*AIRLLM, "serve", model, "--port", "0", "--backend", backend, "--model-name", "tiny"]
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"enum": ["NO", "YES"]}}}
    messages = [{"role": "user", "content": "HELLO"}]
    body = json.dumps({"model": "tiny", "messages": messages, "response_format": form}).encode()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            address = address_in(server.stdout)
            place, kind = f"{address}/v1/chat/completions", {"Content-Type": "application/json"}
            with urllib.request.urlopen(urllib.request.Request(place, body, kind), timeout=60) as answer:
                text = json.load(answer)["choices"][0]["message"]["content"]
                assert json.loads(text) in ("NO", "YES"), text
            with urllib.request.urlopen(f"{address}/metrics", timeout=60) as answer:
                assert b"# TYPE " in answer.read()
        finally:
            server.terminate()


def address_in(lines: Any) -> str:
    """The address that a server prints."""
    said = ""
    for line in lines:
        if found := re.search(r"http://[\d.]+:\d+", line):
            return found.group()
        said += line
    raise AssertionError(f"airllm serve has ended: {said}")


def check_report(_: str, folder: Path) -> None:
    from airllm.bench import plots

    panel = plots.panels("smoke", ["a panel"], "GB/s", lambda axes, _: axes.plot([1, 2], [3, 5]))
    assert panel.startswith("<svg") and "a panel" in panel and panel.endswith("</svg>\n"), panel


def check_hub(_: str, folder: Path) -> None:
    """A repository that is in the cache already opens without a network."""
    home = folder / "hub" / "models--someone--tiny"
    shutil.copytree(MODEL, home / "snapshots" / ("0" * 40))
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("0" * 40)
    os.environ |= {"HF_HOME": str(folder), "HF_HUB_OFFLINE": "1"}
    assert "llama, 3 layers" in run("info", "someone/tiny")


EXTRAS = {"models": check_text, "serve": check_server, "report": check_report, "hub": check_hub}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("backend", nargs="?", default="cpp")
    parser.add_argument("--extras", nargs="*", choices=EXTRAS, default=[])
    options = parser.parse_args()
    why_not = backends.open_backend(options.backend).why_not
    assert not why_not, why_not
    for check in (check_ops, check_stored_weights, check_model, check_command):
        check(options.backend)
    for name in options.extras:
        with tempfile.TemporaryDirectory() as folder:
            EXTRAS[name](options.backend, Path(folder))
    where = Path(airllm.__file__).parent
    print(f"airllm {airllm.__version__} on Python {sys.version.split()[0]}, NumPy {np.__version__}: {where}")
    print(backends.open_backend(options.backend).device)


if __name__ == "__main__":
    main()
