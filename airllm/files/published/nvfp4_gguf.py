"""GGUF files with matrices in NVFP4, ggml's type 40, which are opened as q8_0.

A block has 64 values: for each 16 a scale in FP8 (E4M3, without a sign), then for each 16 eight bytes with
their codes, the first eight in the low halves. A tensor "NAME.scale" multiplies "NAME.weight", or each of its
experts; "NAME.input_scale" is of activations, which airllm rounds in its own way.
"""

from __future__ import annotations

from math import prod
from os import PathLike
from pathlib import Path

import ml_dtypes
import numpy as np

from airllm.files.gguf import NVFP4, NVFP4_BYTES, GgufFile
from airllm.files.published.converted import ConvertedWeights, Place
from airllm.files.published.encode import encode
from airllm.files.published.nvfp4 import E2M1
from airllm.files.published.scheme import NEAREST
from airllm.files.weight_file import FileMap, ModelFileError, Span, Stored, unmap
from airllm.formats import Quantized

_FORMAT = "q8_0"
_GROUPS, _NAN = 4, 0x7F


class Nvfp4File(ConvertedWeights, GgufFile):
    """A GGUF file whose matrices in NVFP4 are `Quantized` in q8_0, and its other tensors as stored.

    The first use of a matrix converts all of them, unless the converted file is there already.
    """

    def __init__(self, path: str | PathLike[str]):
        super().__init__(path)
        of_type = (info for info in self.tensors.values() if info.ggml_type == NVFP4)
        self._places = {
            info.name: Place(info.name, slice(0, prod(info.shape[:-1])), info.shape, _FORMAT)
            for info in of_type
        }
        self._scales = {name: scale for name in self._places if (scale := self._scale_of(name))}
        hidden = {*self._scales.values(), *(_beside(name, "input_scale") for name in self._places)}
        self.tensors = {name: info for name, info in self.tensors.items() if name not in hidden}

    def _scale_of(self, name: str) -> str:
        """The tensor that scales this one; "" if there is none, or if Gemma 4 has it in any format."""
        scale = _beside(name, "scale")
        of_gemma = self.metadata.get("general.architecture") == "gemma4" and "ffn_down_exps" in name
        return scale if scale in self.tensors and not of_gemma else ""

    def tensor(self, name: str) -> Stored:
        """A read-only view of a map. ModelFileError for an unknown name."""
        if name not in self._places:
            return super().tensor(name)
        return Quantized(self._converted.tensor(name), _FORMAT)

    def span(self, name: str) -> Span:
        """The tensor's bytes in its map."""
        if name not in self._places:
            return super().span(name)
        at = self._converted.places[name]
        return Span(self._converted.map, at.start, at.nbytes)

    def maps(self) -> list[FileMap]:
        """The maps of the files that are open."""
        return [*super().maps(), *(file.map for file in self._converted_if_open())]

    def close(self) -> None:
        """Close the files. Arrays that are still held keep their maps."""
        for file in self._converted_if_open():
            unmap(file.map)
        super().close()

    def describe(self) -> list[str]:
        return [f"NVFP4, opened as {_FORMAT}: {NEAREST} ({len(self._places)} matrices)"]

    def _shard_paths(self) -> list[Path]:
        return [part.path for part in self._parts]

    def _convert(self, place: Place, rows: slice) -> np.ndarray:
        stored = np.asarray(super().tensor(place.matrix)).reshape(place.rows.stop, -1)[rows]
        return encode(unpack(stored) * self._scales_of_rows(place)[rows], place.format)

    def _scales_of_rows(self, place: Place) -> np.ndarray:
        """What multiplies each row of a matrix, or of its experts: (rows, 1), float32."""
        count = place.rows.stop
        if (name := self._scales.get(place.matrix)) is None:
            return np.ones((count, 1), np.float32)
        scales = np.asarray(super().tensor(name), np.float32).reshape(-1)
        experts = place.shape[0] if len(place.shape) == 3 else 1
        if len(scales) != experts:
            found, expected = f"has {len(scales)} values", f"{experts}, one for each matrix"
            raise ModelFileError(self.path, f"tensor {name}", found, expected)
        return np.broadcast_to(scales[:, None], (experts, count // experts)).reshape(-1, 1)


def unpack(blocks: np.ndarray) -> np.ndarray:
    """Rows of blocks (rows, bytes), uint8 -> values (rows, k), float32."""
    each = blocks.reshape(-1, NVFP4_BYTES)
    bits = each[:, :_GROUPS] & 0x7F
    scales = np.where(bits == _NAN, 0, bits).astype(np.uint8).view(ml_dtypes.float8_e4m3fn)
    codes = each[:, _GROUPS:].reshape(len(each), _GROUPS, -1)
    values = E2M1[np.concatenate([codes & 15, codes >> 4], axis=2)]
    values *= scales.astype(np.float32)[:, :, None]
    return values.reshape(len(blocks), -1)


def _beside(name: str, suffix: str) -> str:
    return f"{name.removesuffix('.weight')}.{suffix}"
