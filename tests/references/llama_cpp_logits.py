"""Check that llama.cpp gives the tiny models' GGUF files the logits that transformers gives their folders.

    npm install --omit=optional --ignore-scripts node-llama-cpp @node-llama-cpp/linux-x64
    python -m tests.references.llama_cpp_logits FOLDER_WITH_NODE_MODULES [--written] [NAME ...]

So the keys, names and layouts of tests/support/models/tiny_gguf*.py are llama.cpp's and, with --written,
those of the files that airllm makes of folders. Only float32 files: it computes with activations of 8 bits
where weights are in blocks.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from airllm.convert.quantize import quantize
from tests.files.test_quantize import with_tokenizer
from tests.support.models import tiny_gguf, tiny_models

Write = Callable[[str, Path], Path]

CLOSE = 1e-5  # of the logits' range
# What it computes otherwise, as far as that shows. It has gelu as a table of float16 ...
GELU = 1e-3
# ... its qwen2vl has another epsilon in norms ...
APART = {"gemma": GELU, "gemma2": GELU, "gemma3": GELU, "starcoder2": GELU, "qwen2_5_vl": 1e-4}
# ... and it leaves out their windows, or takes the long factors by the context's size.
OTHERWISE = ("mistral", "phi3", "phi3_long")


def write_model(name: str, path: Path) -> Path:
    """What airllm makes of a folder."""
    return quantize(with_tokenizer(name, path.parent / name), path, "f32").path


def logits(node_folder: Path, names: Iterable[str], write: Write) -> dict[str, list[np.ndarray]]:
    """llama.cpp's, of each text."""
    with tempfile.TemporaryDirectory() as scratch:
        files = {name: str(write(name, Path(scratch) / f"{name}.gguf")) for name in names}
        request = Path(scratch) / "request.json"
        request.write_text(json.dumps({"files": files, "texts": tiny_models.texts()}))
        script = shutil.copy(Path(__file__).with_suffix(".mjs"), node_folder)
        subprocess.run(["node", script, request, result := Path(scratch) / "result.json"], check=True)
        os.unlink(script)
        found = json.loads(result.read_text())
    return {name: [np.array(each) for each in texts] for name, texts in found.items()}


def check(node_folder: Path, names: Iterable[str], write: Write) -> None:
    """Raises where one differs by too much."""
    for name, found in logits(node_folder, names, write).items():
        wanted = tiny_models.reference(name)
        far = max(float(np.abs(a - b).max() / np.ptp(b)) for a, b in zip(found, wanted, strict=True))
        print(f"{name}: {far:.1e} of the logits' range")
        if not far < (limit := APART.get(name, CLOSE)):
            raise ValueError(f"{name} differs by {far:.1e} of the logits' range, expected less than {limit}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("node_folder", type=Path)
    parser.add_argument("--written", action="store_true")
    known = tiny_models.AS_GGUF
    parser.add_argument("names", nargs="*", default=[name for name in known if name not in OTHERWISE])
    given = parser.parse_intermixed_args()
    check(given.node_folder, given.names, write_model if given.written else tiny_gguf.write_gguf)


if __name__ == "__main__":
    main()
