"""Divides a model's weights into units to load and release together: layers, output parts, experts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from airllm.architectures.tensor_names import NamedTensors, layer_names
from airllm.files.pages import Mapped, Piece, merge, resident_bytes
from airllm.files.weight_file import ModelFileError, Span

_ROWS = 64  # parts of the output matrix have a multiple of this many rows
_LEAST_PART = 1 << 20  # bytes: a smaller part of the output matrix is not worth a product of its own


@dataclass(frozen=True)
class WeightUnits:
    """The weights of a model, as pieces of mapped files.

    `layers`: what every token needs of each layer. `output`: parts of the output matrix, which end at `rows`.
    `table`: the embedding, of which a token needs one row. `experts`: all experts; `expert_bytes`: of the
    largest. `most_values`: number of values in the largest matrix or part of the output.
    """

    tensors: NamedTensors
    files: list[Mapped]
    layers: list[list[Piece]]
    output: list[list[Piece]]
    rows: list[int]
    table: list[Piece]
    experts: list[Piece]
    expert_bytes: int
    most_values: int

    @property
    def streamed(self) -> list[list[Piece]]:
        """All units that every token needs, in the order of use."""
        return self.layers + self.output

    def whole_layer(self, layer: int) -> list[Piece]:
        """The pieces of a layer with all of its experts."""
        c = self.tensors.config
        experts = range(c.experts if c.is_moe(layer) else 0)
        return merge([*self.layers[layer], *(each for i in experts for each in self.expert(layer, i))])

    def expert(self, layer: int, number: int) -> list[Piece]:
        """The pieces of an expert's matrices."""
        of = {id(file.map): file for file in self.files}
        names = _expert_names(layer, number, self.tensors.config.gated)
        return merge(_piece(of, self.tensors.span(name)) for name in names)

    def check(self) -> None:
        """Raise ModelFileError if a file was truncated: reading beyond its end would end the process."""
        for file in self.files:
            if (size := file.map.size()) < file.size:
                found = f"has {size} bytes now"
                raise ModelFileError(
                    self.tensors.weights.path, "", found, f"{file.size} as when it was opened"
                )


def layer_pieces(files: dict[int, Mapped], tensors: NamedTensors, layer: int) -> list[Piece]:
    """The pieces of a layer's weights, without its experts. Adds the mapped files to `files`."""
    names = layer_names(tensors.config, layer)
    dense = [name for name in names if not re.search(r"\.experts\.\d", name)]
    if layer == 0 and tensors.config.layer_input:
        dense.append("layer_projection")  # every token needs it before the first layer
    return merge(_piece(files, tensors.span(name)) for name in dense)


def divide_weights(tensors: NamedTensors) -> WeightUnits:
    """The units of an opened model."""
    files = {id(map): Mapped(map) for map in tensors.weights.maps()}
    c = tensors.config

    def pieces(names: Iterable[str]) -> list[Piece]:
        return merge(_piece(files, tensors.span(name)) for name in names)

    layers = [layer_pieces(files, tensors, layer) for layer in range(c.layers)]
    span = tensors.span("token_embedding" if c.tied_embeddings else "output")
    rows = _rows_of_parts(c.vocabulary, span.nbytes, max(map(resident_bytes, layers)))
    experts = [(i, number) for i in range(c.layers) if c.is_moe(i) for number in range(c.experts)]
    each = [pieces(_expert_names(*expert, c.gated)) for expert in experts]
    names = [name for layer in range(c.layers) for name in layer_names(c, layer)]
    largest = max(prod(tensors.tensor(name).shape) for name in names)
    return WeightUnits(
        tensors,
        layers=layers,
        output=_parts(_piece(files, span), rows),
        rows=rows,
        table=pieces(["token_embedding"] + ["layer_embedding"] * (c.layer_input > 0)),
        experts=merge(piece for expert in each for piece in expert),
        expert_bytes=max(map(resident_bytes, each), default=0),
        most_values=max(largest, max(b - a for a, b in zip([0, *rows], rows, strict=False)) * c.width),
        files=list(files.values()),
    )


def _expert_names(layer: int, number: int, gated: bool) -> list[str]:
    """Names of an expert's matrices. Its vectors are copied when the model is opened."""
    parts = ("gate",) * gated + ("up", "down")
    return [f"layers.{layer}.experts.{number}.{part}" for part in parts]


def _rows_of_parts(rows: int, nbytes: int, most: int) -> list[int]:
    """The rows at which the parts of a matrix end. A part has up to `most` bytes, more if that is little."""
    each = max(most, _LEAST_PART) * rows // nbytes
    each = max(each // _ROWS * _ROWS, _ROWS)
    return [*range(each, rows, each), rows]


def _parts(whole: Piece, rows: list[int]) -> list[list[Piece]]:
    row = (whole.stop - whole.start) // rows[-1]
    return [
        [whole._replace(start=whole.start + row * first, stop=whole.start + row * last)]
        for first, last in zip([0, *rows], rows, strict=False)
    ]


def _piece(files: dict[int, Mapped], span: Span) -> Piece:
    mapped = files.get(id(span.map)) or files.setdefault(id(span.map), Mapped(span.map))
    return Piece(mapped, span.start, span.start + span.nbytes)
