"""Tables of rotary cosines and sines, computed once for each model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from airllm.architectures.layer_spec import Rope
from airllm.architectures.model_config import ModelConfig
from airllm.architectures.tensor_names import NamedTensors
from airllm.files.weight_file import ModelFileError
from airllm.memory.layers import check_tensor
from airllm.ops.rope_scaling import frequencies, longrope_attention_factor
from airllm.tensor_ops import rope_table

Tables = list[tuple[np.ndarray, np.ndarray]]  # cosines and sines (positions, dim / 2) of each rotation

_STEP = 512  # positions: tables grow in whole steps


class Rotation:
    """The angles of one `Rope`. A model scaled by "longrope" has one set of factors for texts up to its
    original training length and another for longer texts (LongRoPE: Ding et al., 2024).
    """

    def __init__(self, rope: Rope, context: int, tensors: NamedTensors, has_factors: bool = True):
        self.rope, self._has_factors = rope, has_factors
        self._short_until: int | None = None
        try:
            self._scalings = list(self._scaling_rules(dict(rope.scaling or {}), context, tensors))
            for scaling in self._scalings:
                frequencies(rope.dim, rope.theta, scaling)
        except ModelFileError:
            raise
        except (ValueError, TypeError, ArithmeticError) as error:  # for unforeseen numbers in a file
            place, found = "the rotation of positions", f"cannot be computed ({error})"
            raise ModelFileError(tensors.weights.path, place, found) from None
        empty = np.empty((0, rope.dim // 2), np.float32)
        self._tables = [(empty, empty) for _ in self._scalings]

    def _scaling_rules(
        self, scaling: dict[str, Any], context: int, tensors: NamedTensors
    ) -> Iterator[dict[str, Any]]:
        """The scaling of short texts, and that of long texts if it differs."""
        pairs = self.rope.dim // 2
        if scaling.get("rope_type") != "longrope":
            yield (_stored_factors(tensors, pairs) if self._has_factors else None) or scaling
            return
        self._short_until = int(scaling["original_max_position_embeddings"])
        for side in ("short", "long"):
            yield _longrope(scaling, side, context, tensors, pairs)

    def is_long(self, tokens: int) -> bool:
        """Whether a text of this many tokens uses the angles of long texts, from its first token on."""
        return self._short_until is not None and tokens > self._short_until

    def same_until(self, tokens: int, long: bool) -> int:
        """The length, at most `tokens`, up to which the angles stay the same."""
        return min(tokens, self._short_until) if self._short_until and not long else tokens

    def at(self, start: int, stop: int, long: bool) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and sines (stop - start, dim / 2), float32, of these positions. `long`: see `is_long`."""
        cos, sin = self._tables[long]
        if len(cos) < stop:
            positions = np.arange(-(-stop // _STEP) * _STEP)
            table = rope_table(positions, self.rope.dim, self.rope.theta, self._scalings[long])
            cos, sin = self._tables[long] = table
        return cos[start:stop], sin[start:stop]


class Rotations:
    """The rotations of a model, in order: that of most layers, and another one of some layers."""

    def __init__(self, config: ModelConfig, tensors: NamedTensors):
        self._all = [Rotation(config.rope, config.context, tensors)]
        if config.local_rope:  # the stored factors are not for layers with a window
            self._all.append(Rotation(config.local_rope, config.context, tensors, has_factors=False))

    def __iter__(self) -> Iterator[Rotation]:
        return iter(self._all)

    def is_long(self, tokens: int) -> bool:
        """Whether a text of this many tokens uses the angles of long texts (Phi-3)."""
        return any(rotation.is_long(tokens) for rotation in self)

    def same_until(self, tokens: int, long: bool) -> int:
        """The length, at most `tokens`, up to which the angles stay the same. `long` selects those of long
        texts.
        """
        return min((rotation.same_until(tokens, long) for rotation in self), default=tokens)

    def tables(self, until: int, long: bool) -> Tables:
        """Cosines and sines of the first `until` positions, for each rotation. The tables end earlier if the
        angles change earlier.
        """
        until = self.same_until(until, long)
        return [rotation.at(0, until, long) for rotation in self]


def _stored_factors(tensors: NamedTensors, pairs: int) -> dict[str, Any] | None:
    """The tensor of divisors of the angles that GGUF files of Llama 3 have; None if there is none."""
    if "rope_factors" not in tensors:
        return None
    factors = check_tensor(tensors, "rope_factors", (pairs,))
    return {"rope_type": "factors", "factors": np.asarray(factors, np.float64)}


def _longrope(
    scaling: dict[str, Any], side: str, context: int, tensors: NamedTensors, pairs: int
) -> dict[str, Any]:
    name = f"rope_factors_{side}"
    factors = check_tensor(tensors, name, (pairs,)) if name in tensors else scaling[f"{side}_factor"]
    factors = np.asarray(factors, np.float64)
    attention_factor = longrope_attention_factor(scaling, context)
    return {"rope_type": "factors", "factors": factors, "attention_factor": attention_factor}
