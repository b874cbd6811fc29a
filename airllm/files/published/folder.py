"""A folder with quantized weights as a weight file, whose matrices are blocks of ggml's formats."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import numpy as np

from airllm.files.published.converted import ConvertedWeights, Place
from airllm.files.published.encode import encode
from airllm.files.published.methods import Quantization
from airllm.files.published.scheme import Held, Parts, Scheme
from airllm.files.safetensors import SafetensorsFile, SafetensorsFolder
from airllm.files.weight_file import FileMap, Stored
from airllm.formats import FORMATS, Quantized

_STACK = re.compile(r"(.*\.mlp)\.switch_mlp\.(\w+)")  # MLX stores the experts of a layer together


@dataclass(frozen=True)
class Matrix:
    """A quantized matrix of the folder: what stores it, and the format that it is opened as."""

    parts: Parts
    scheme: Scheme
    held: Held

    @property
    def rows(self) -> int:
        return prod(self.held.shape[:-1])


class PublishedFolder(ConvertedWeights, SafetensorsFolder):
    """The tensors of a folder with quantized weights: matrices as `Quantized`, the others as stored.

    The first use of a matrix converts all of them, unless the converted file is there already.
    """

    def __init__(self, path: Path, quantization: Quantization):
        super().__init__(path)
        self.quantization = quantization
        self._stored = self._shards  # name of a tensor -> its file
        self.matrices = dict(self._find())  # name of a matrix -> how it is stored
        hidden = set(self._hidden())
        whole = {name: file for name, file in self._stored.items() if name not in hidden}
        self._places = dict(self._lay_out())
        self._shards = whole | dict.fromkeys(self._places, "")

    def tensor(self, name: str) -> Stored:  # type: ignore[override]  # a matrix is Quantized
        """A view of the mapped file. ModelFileError for an unknown name."""
        data = super().tensor(name)
        place = self._places.get(name)
        if place is None or place.format not in FORMATS:
            return data
        return Quantized(data, place.format)

    def maps(self) -> list[FileMap]:
        """The maps of the files that are open."""
        return [file.map for file in (*self._open.values(), *self._converted_if_open())]

    def close(self) -> None:
        """Close the files. Arrays that are still held keep their maps."""
        for file in self._converted_if_open():
            self._open[""] = file
        super().close()

    def describe(self) -> list[str]:
        kinds: dict[str, int] = {}
        for matrix in self.matrices.values():
            text = f"{matrix.scheme.title}, opened as {matrix.held.format}: {matrix.held.how}"
            kinds[text] = kinds.get(text, 0) + 1
        return [f"{text} ({count} matrices)" for text, count in kinds.items()]

    # ------------------------------------------------------------------------------------------ matrices

    def _find(self) -> Iterator[tuple[str, Matrix]]:
        for module, suffixes in self._modules().items():
            scheme = self.quantization.scheme_of(module)
            if scheme is None:
                continue
            kinds = {s: self._kind(name) for s, name in suffixes.items() if s in scheme.parts}
            parts = Parts(self.path, module, kinds, partial(self._read_part, suffixes))
            if scheme.stores(parts):
                yield self._name(module), Matrix(parts, scheme, scheme.held(parts))

    def _modules(self) -> dict[str, dict[str, str]]:
        """Module -> suffix -> name of its tensor. MXFP4's suffixes follow an underscore, those of
        bitsandbytes have points.
        """
        found: dict[str, dict[str, str]] = {}
        parts = self.quantization.scheme.parts
        cut = "_" if "blocks" in parts else "."
        long = [f".{part}" for part in parts if "." in part]
        for name in self._stored:
            end = next((part for part in long if name.endswith(part)), None)
            module, _, suffix = name.rpartition(cut)
            if end:
                module, suffix = name.removesuffix(end), end[1:]
            found.setdefault(module, {})[suffix] = name
        return found

    def _name(self, module: str) -> str:
        return module if "blocks" in self.quantization.scheme.parts else f"{module}.weight"

    def _hidden(self) -> Iterator[str]:
        """Names of tensors that are a part of a matrix, or that only quantize activations."""
        modules = self._modules()
        for matrix in self.matrices.values():
            for suffix, name in modules[matrix.parts.module].items():
                if suffix in (*matrix.scheme.parts, *matrix.scheme.ignored):
                    yield name

    def _kind(self, name: str) -> tuple[np.dtype[np.generic], tuple[int, ...]]:
        place = super()._file_with(name).places[name]
        return place.dtype, place.shape

    def _read_part(self, suffixes: dict[str, str], suffix: str) -> np.ndarray:
        name = suffixes[suffix]
        return self._file(self._stored[name]).tensor(name)

    # ------------------------------------------------------------------------------- the converted file

    def _lay_out(self) -> Iterator[tuple[str, Place]]:
        """Where each matrix is in the converted file. Experts of one stack are matrices of their own."""
        for name, matrix in self.matrices.items():
            match, shape = _STACK.fullmatch(matrix.parts.module), matrix.held.shape
            if match and len(shape) == 3:
                each = shape[1]
                for i in range(shape[0]):
                    expert = f"{match[1]}.experts.{i}.{match[2]}.weight"
                    yield expert, Place(name, slice(i * each, (i + 1) * each), shape[1:], matrix.held.format)
            else:
                yield name, Place(name, slice(0, matrix.rows), shape, matrix.held.format)

    def _shard_paths(self) -> list[Path]:
        return [self.path / shard for shard in sorted(set(self._stored.values()))]

    def _convert(self, place: Place, rows: slice) -> np.ndarray:
        matrix = self.matrices[place.matrix]
        return encode(matrix.scheme.rows(matrix.parts, rows), place.format)

    def _file_with(self, name: str) -> SafetensorsFile:
        return self._converted if name in self.__dict__.get("_places", ()) else super()._file_with(name)
