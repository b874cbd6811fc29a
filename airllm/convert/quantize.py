"""Converts a GGUF file or a Hugging Face folder to a GGUF file with weights in another format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from airllm import tensor_ops
from airllm.architectures import config_of
from airllm.convert.folder_to_gguf import folder_source
from airllm.convert.mixes import TARGETS, Mix, Shape, format_of_matrix, stays_float32
from airllm.files.gguf import GgufFile
from airllm.files.gguf_writer import (
    FLOATS,
    UINT32,
    Key,
    PlannedTensor,
    Source,
    in_pieces,
    nbytes_of,
    write_gguf,
)
from airllm.files.open_weights import open_weights
from airllm.files.safetensors import SafetensorsFolder
from airllm.files.weight_file import Stored
from airllm.formats import FORMATS, Quantized
from airllm.progress import OnProgress, unseen
from airllm.writable import refuse_unwritable

# Keys that describe the file and not the model.
_OF_THE_FILE = (
    "general.architecture",
    "general.alignment",
    "general.file_type",
    "general.quantization_version",
)

_ADDED_TABLES = ("position_embd.weight", "token_types.weight")  # of encoders; they stay as precise as vectors


@dataclass(frozen=True)
class Written:
    """The result of `quantize`: a file of `nbytes`. The model had `before` bytes. `twice`: quantized formats
    whose values were rounded a second time.
    """

    path: Path
    before: int
    nbytes: int
    twice: tuple[str, ...]


def quantize(source: Path, target: Path, format: str = "q4_0", on_progress: OnProgress = unseen) -> Written:
    """Write the model `source` to the GGUF file `target`, with matrices in `format`: a float format, a block
    format, or a mix of them such as q4_k_m, which has the formats that llama.cpp chooses. Case is ignored.

    Vectors and the routers of experts stay float32. The output matrix has more bits: q8_0, in a mix q6_k. A
    matrix whose rows are no whole blocks of 256 gets a format of blocks of 32; float16, if they are no whole
    blocks of 32 either. Everything else in a GGUF file is kept; for a folder it follows
    llama.cpp's conventions. Only a few rows are in memory at a time. Raises ValueError for an unknown format,
    ModelFileError or OSError for a model that cannot be read or that a GGUF file cannot express, and
    FileExistsError if `target` exists.
    """
    if str(format).lower() not in TARGETS:
        raise ValueError(f"format has value {format!r}, expected one of {', '.join(TARGETS)}")
    if target.exists():
        raise FileExistsError(f"{target} exists already: remove it, or choose another name")
    if not target.parent.exists():
        raise FileNotFoundError(f"{target} cannot be written: there is not a folder {target.parent}")
    refuse_unwritable(target)
    with open_weights(source) as weights:
        if isinstance(weights, GgufFile):
            architecture = str(weights.metadata.get("general.architecture", ""))
            keys, tensors = list(_kept_keys(weights)), list(_all_tensors(weights))
        else:
            assert isinstance(weights, SafetensorsFolder)
            config = config_of(weights)
            architecture = config.architecture
            keys, tensors = folder_source(weights, config)
        return _write_file(target, architecture, keys, tensors, TARGETS[format.lower()], on_progress)


def _write_file(
    target: Path,
    architecture: str,
    keys: list[Key],
    tensors: list[Source],
    mix: Mix,
    on_progress: OnProgress,
) -> Written:
    shape = Shape.of(architecture, {key.name: key.value for key in keys})
    keys = [*keys, Key("general.file_type", mix.file_type, UINT32)]
    keys.append(Key("general.quantization_version", 2, UINT32))
    output = "output.weight" if any(t.name == "output.weight" for t in tensors) else "token_embd.weight"
    planned, twice, before = [], set(), 0
    for tensor in tensors:
        into = _format_for(tensor, mix, shape, output)
        planned.append(_plan(tensor, into))
        before += tensor.nbytes
        if tensor.format != into and tensor.format in FORMATS and into in FORMATS:
            twice.add(tensor.format)
    write_gguf(target, architecture, keys, planned, on_progress)
    return Written(target, before, target.stat().st_size, tuple(sorted(twice)))


def _kept_keys(file: GgufFile) -> Iterator[Key]:
    """The metadata of a file, without keys about the file itself and empty lists, which gguf refuses."""
    for name, value in file.metadata.items():
        if name in _OF_THE_FILE or name.startswith("split."):
            continue
        types = file.metadata.types[name]
        listed = value.tolist() if isinstance(value, np.ndarray) else value
        if len(types) == 1 or listed:
            yield Key(name, listed, types)


def _all_tensors(file: GgufFile) -> Iterator[Source]:
    for name in file.names():
        stored = file.tensor(name)
        yield Source.of(name, stored, lambda stored=stored: [stored])  # type: ignore[misc]


def _format_for(tensor: Source, mix: Mix, shape: Shape, output: str) -> str:
    """The format of a tensor in the new file; `output` is the name of the output matrix."""
    has = tensor.format
    if has not in FORMATS and has not in FLOATS:
        return has  # integers
    if tensor.name in _ADDED_TABLES or stays_float32(tensor.name, tensor.shape):
        return "float32"
    return format_of_matrix(mix, tensor.name, tensor.shape[-1], shape, tensor.name == output)


def _plan(tensor: Source, format: str) -> PlannedTensor:
    if format not in FORMATS and format not in FLOATS or format == tensor.format:
        return _plan_copy(tensor)

    def pieces() -> Iterator[np.ndarray]:
        for part in tensor.parts():
            for rows in _row_runs(part):
                yield _encode(rows, format)

    return PlannedTensor(
        tensor.name, tensor.shape, _ggml_type(format), nbytes_of(tensor.shape, format), pieces
    )


def _plan_copy(tensor: Source) -> PlannedTensor:
    """Copy the tensor's bytes."""

    def pieces() -> Iterator[np.ndarray]:
        for part in tensor.parts():
            data = part.data if isinstance(part, Quantized) else part
            flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
            yield from (flat[run] for run in in_pieces(len(flat), 1))

    return PlannedTensor(tensor.name, tensor.shape, _ggml_type(tensor.format), tensor.nbytes, pieces)


def _ggml_type(format: str) -> int:
    if format in FORMATS:
        return FORMATS[format].ggml_type
    return (FLOATS | {"int8": 24, "int16": 25, "int32": 26, "int64": 27, "float64": 28})[format]


def _row_runs(stored: Stored) -> Iterator[np.ndarray]:
    """The values, float32, some rows at a time."""
    if isinstance(stored, Quantized):
        blocks = Quantized(stored.data.reshape(-1, stored.data.shape[-1]), stored.format)
        for run in in_pieces(*blocks.shape):
            yield tensor_ops.dequantize(blocks[run])
    else:
        rows = stored.reshape(-1, stored.shape[-1])
        for run in in_pieces(*rows.shape):
            yield rows[run].astype(np.float32)


def _encode(rows: np.ndarray, format: str) -> np.ndarray:
    if format in FORMATS:
        return tensor_ops.quantize(rows, format).data
    return rows.astype(ml_dtypes.bfloat16 if format == "bfloat16" else format, copy=False)
