"""Opens the weights of a model in either kind of file."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from airllm.files.gguf import NVFP4, GgufFile
from airllm.files.published.folder import PublishedFolder
from airllm.files.published.methods import quantization_of
from airllm.files.published.nvfp4_gguf import Nvfp4File
from airllm.files.safetensors import SafetensorsFolder
from airllm.files.weight_file import WeightFile, model_path, read_json


def open_weights(path: str | PathLike[str]) -> WeightFile:
    """The tensors of a GGUF file or of a Hugging Face folder. Raises ModelFileError or OSError."""
    path = model_path(path)
    return _open_folder(path) if path.is_dir() else _open_gguf(path)


def _open_gguf(path: Path) -> GgufFile:
    file = GgufFile(path)
    if all(info.ggml_type != NVFP4 for info in file.tensors.values()):
        return file
    file.close()
    return Nvfp4File(path)


def _open_folder(path: Path) -> SafetensorsFolder:
    config = path / "config.json"
    quantization = quantization_of(config, read_json(config)) if config.is_file() else None
    return PublishedFolder(path, quantization) if quantization else SafetensorsFolder(path)
