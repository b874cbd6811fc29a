"""How an architecture is declared: in the words of a decoder layer, once, in the file of its family.

Numbers that files say are in `keys.py`, names of tensors in `tensor_names.py`. What is here says which of
those an architecture has, what it takes where a file leaves one out, and what no file says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Default = Any  # a value, or a function of the fields that were read before it
REMOVED = object()  # what `Architecture.but` leaves out of a mapping; None is a value
SCALINGS = {each: each for each in ("default", "linear", "llama3", "yarn", "longrope")}


@dataclass(frozen=True)
class Norms:
    """RMS norms: `before` and `after` attention and feed-forward, of `q_and_k` by "head" or by whole "row".
    `folder_less`: what folders leave off their weights.
    """

    before: bool = True
    after: bool = False
    q_and_k: str = ""
    folder_less: float = 0.0


@dataclass(frozen=True)
class Rotary:
    """The rotation of positions.

    `theta`: where a file says none. `neighbours`: GGUF files have the rows of q and k so that the pairs that
    turn together are neighbours. `local_theta`: of layers with a window, if their rotation is another;
    `local_unscaled`: they have the same theta, and are not stretched to longer texts. `none_every`: every so
    many-th layer has none. `scalings`: rope types of config.json, and what each means.
    `temperature`: queries are scaled by position. `yarn_truncates`: where yarn begins and ends is rounded to
    whole pairs, which config.json may say and GGUF files do not.
    """

    theta: float = 1e4
    neighbours: bool = False
    local_theta: float | None = None
    local_unscaled: bool = False
    none_every: int = 0
    scalings: Mapping[str, str] = field(default_factory=lambda: SCALINGS)
    temperature: bool = False
    yarn_truncates: bool = True


@dataclass(frozen=True)
class Window:
    """Attention to the last tokens alone.

    `default`: so many where config.json, or for `in_gguf` a GGUF file, says none. `switch`: what config.json
    must have on for it. `all_but_every`: every so many-th layer sees all. Where config.json lists no layers,
    `first`: the first layer that has one, and `until`: the first that has none any more, if its
    max_window_layers says no other. `nope_only`: those that rotate nothing have one. `listed`: config.json
    may list the layers; `switched_by_list`: a list counts where the switch is off too.
    """

    default: int | None = None
    in_gguf: int | None = None
    switch: str = ""
    all_but_every: int = 0
    first: int | None = None
    until: int | None = None
    nope_only: bool = False
    listed: bool = True
    switched_by_list: bool = False


@dataclass(frozen=True)
class Biases:
    """Which products have a bias in a folder, those of attention, of the `router` and of `experts`: a flag of
    config.json with its default, or always, or never. GGUF files have one where they have its tensor.
    """

    qkv: tuple[str, bool] | bool = ("attention_bias", False)
    output: tuple[str, bool] | bool = ("attention_bias", False)
    router: bool = False
    experts: bool = False


@dataclass(frozen=True)
class Stacks:
    """How folders have all experts of a layer in one tensor. `transposed`: a matrix has a column for each
    output. `interleaved`: gate and up are one tensor, whose outputs are theirs by turns.
    """

    transposed: bool = False
    interleaved: bool = False


@dataclass(frozen=True)
class Tiny:
    """A tiny model that the tests run and transformers computes: `values` of its config.json beyond the sizes
    that all have. `gguf`: GGUF files can say all of it. `model_type`: where it is not the architecture's
    first.
    """

    values: Mapping[str, Any]
    dtype: str = "bfloat16"
    gguf: bool = True
    model_type: str = ""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A family's architecture, or a variant of one that folders tell apart and GGUF files do not.

    `name`: general.architecture of GGUF files. `title`: for people. `model_types`: of config.json;
    `parts_of`: model types whose `text_config` is such a model. `numbers`: which keys of `keys.py` files of
    it say beyond those that all do. `keys`: other names, or another meaning, of keys. `defaults` of numbers
    that files leave out; `folder_defaults`, `gguf_defaults`: of one kind of file. `gguf_names`,
    `folder_names`: of tensors, where they are others than in `tensor_names.py`. `sinks`: heads have them.
    `folder_stacks`: where folders do not have experts one by one.
    `stripped_names`: parts of general.name of those GGUF files whose vocabulary has white space after control
    tokens removed.
    """

    name: str
    title: str
    model_types: tuple[str, ...]
    parts_of: tuple[str, ...] = ()
    in_gguf: bool = True
    norms: Norms = Norms()
    rotary: Rotary = Rotary()
    window: Window | None = None
    biases: Biases = Biases()
    fused: bool = False
    tied: bool = False
    experts: Callable[..., tuple[bool, ...]] | None = None
    sinks: bool = False
    folder_stacks: Stacks | None = None
    numbers: tuple[str, ...] = ()
    keys: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Default] = field(default_factory=dict)
    folder_defaults: Mapping[str, Default] = field(default_factory=dict)
    gguf_defaults: Mapping[str, Default] = field(default_factory=dict)
    gguf_names: Mapping[str, str] = field(default_factory=dict)
    folder_names: Mapping[str, str] = field(default_factory=dict)
    stripped_names: tuple[str, ...] = ()
    tiny: Mapping[str, Tiny] = field(default_factory=dict)

    @property
    def fixed(self) -> dict[str, Any]:
        """The fields of ModelConfig that no file says."""
        return {
            "architecture": self.name,
            "pre_norms": self.norms.before,
            "post_norms": self.norms.after,
            "qk_norm": self.norms.q_and_k,
            "fused": self.fused,
            "sinks": self.sinks,
        }

    def but(self, name: str = "", **other: Any) -> Architecture:
        """One that differs in this. Without a `name`, GGUF files call it as they call this one, and are read
        as this one. A mapping adds to this one's; its entries of `REMOVED` are left out.
        """
        own: dict[str, Any] = {"name": name or self.name, "in_gguf": bool(name), "parts_of": (), "tiny": {}}
        merged = {key: _merge(getattr(self, key), other[key]) for key in _MERGED & other.keys()}
        return dataclasses.replace(self, **own | other | merged)


_MERGED = {"keys", "defaults", "folder_defaults", "gguf_defaults", "gguf_names", "folder_names"}


def _merge(known: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**known, **other}.items() if value is not REMOVED}
