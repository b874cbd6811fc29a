"""A model's weights in units that come and go together: layers, parts of the output matrix, experts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from airllm.architectures.tensor_names import NamedTensors, layer_names
from airllm.files.pages import Mapped, Piece, merge, resident_bytes
from airllm.files.weight_file import ModelFileError, Span

_ROWS = 64  # of the output matrix: a part of it has a multiple of so many
_LEAST_PART = 1 << 20  # bytes of the output matrix that are worth a product of their own


@dataclass(frozen=True)
class Units:
    """Where the weights lie, as pieces of mapped files.

    `layers`: of each layer what every token needs. `output`: the output matrix in parts, which end at `rows`.
    `table`: the embedding, of which a token needs one row. `experts`: all of them; `expert_bytes`: of the
    largest. `most_values`: of a matrix, or of a part of the output.
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
        """All that every token needs, in that order."""
        return self.layers + self.output

    def expert(self, layer: int, number: int) -> list[Piece]:
        """Where an expert's matrices lie."""
        of = {id(file.map): file for file in self.files}
        return merge(_piece(of, self.tensors.span(name)) for name in _expert_names(layer, number))

    def check(self) -> None:
        """Raise ModelFileError if a file was cut short: what is mapped and lacks would end the process."""
        for file in self.files:
            if (size := file.map.size()) < file.size:
                found = f"has {size} bytes now"
                raise ModelFileError(
                    self.tensors.weights.path, "", found, f"{file.size} as when it was opened"
                )


def layer_pieces(files: dict[int, Mapped], tensors: NamedTensors, layer: int) -> list[Piece]:
    """Where a layer's weights lie, less its experts. `files` gets what of them is mapped."""
    names = layer_names(tensors.config, layer)
    dense = [name for name in names if not re.search(r"\.experts\.\d", name)]
    return merge(_piece(files, tensors.span(name)) for name in dense)


def units_of(tensors: NamedTensors) -> Units:
    """The units of an opened model."""
    files: dict[int, Mapped] = {}
    c = tensors.config

    def pieces(names: Iterable[str]) -> list[Piece]:
        return merge(_piece(files, tensors.span(name)) for name in names)

    layers = [layer_pieces(files, tensors, layer) for layer in range(c.layers)]
    span = tensors.span("token_embedding" if c.tied_embeddings else "output")
    rows = _rows_of_parts(c.vocabulary, span.nbytes, max(map(resident_bytes, layers)))
    experts = [(i, number) for i in range(c.layers) if c.is_moe(i) for number in range(c.experts)]
    each = [pieces(_expert_names(*expert)) for expert in experts]
    names = [name for layer in range(c.layers) for name in layer_names(c, layer)]
    largest = max(prod(tensors.tensor(name).shape) for name in names)
    return Units(
        tensors,
        layers=layers,
        output=_parts(_piece(files, span), rows),
        rows=rows,
        table=pieces(["token_embedding"]),
        experts=merge(piece for expert in each for piece in expert),
        expert_bytes=max(map(resident_bytes, each), default=0),
        most_values=max(largest, max(b - a for a, b in zip([0, *rows], rows, strict=False)) * c.width),
        files=list(files.values()),
    )


def _expert_names(layer: int, number: int) -> list[str]:
    """Those of its matrices: vectors are copied when a model is opened."""
    return [f"layers.{layer}.experts.{number}.{part}" for part in ("gate", "up", "down")]


def _rows_of_parts(rows: int, nbytes: int, most: int) -> list[int]:
    """Where the parts of a matrix end that are no larger than a layer."""
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
