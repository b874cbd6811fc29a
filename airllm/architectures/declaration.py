"""How to declare an architecture: once, in the file of its family, in terms of a decoder layer.

`keys.py` has the numbers in files, `tensor_names.py` the names of tensors. A declaration says which of them
an architecture has, which values replace missing ones, and what no file says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airllm.architectures.recurrent import Recurrent

Default = Any  # a value, or a function of the fields that were read before it
REMOVED = object()  # removes an entry in `Architecture.but`; None is a value
# Numbers of a router that scores groups of experts.
EXPERT_GROUPS = ("expert_scores", "expert_scale", "expert_groups", "expert_groups_used")
SCALINGS = {each: each for each in ("default", "linear", "llama3", "yarn", "longrope", "proportional")}


@dataclass(frozen=True)
class Norms:
    """Norms `before` and `after` attention and feed-forward. `kind`: "" for RMS norms, or "layer". `bias`:
    they add one. `parallel`: attention and feed-forward share the norm before them, and x gets the sum of
    both. `q_and_k`: queries and keys are normalized by "head" or by whole "row"; as "rotated", by head
    without a weight, in layers with rotation; or not at all if "". `q_and_k_flag`: the flag of config.json
    that turns these on, and its default; GGUF files have them if they have their tensors, or by
    `none_of_experts`: not with as many experts. `q_and_k_late`: these come after the rotation. `folder_less`:
    folders store norm weights minus this. `values`: each head of the values is normalized, without a weight.
    """

    before: bool = True
    after: bool = False
    kind: str = ""
    bias: bool = False
    parallel: bool = False
    q_and_k: str = ""
    q_and_k_flag: tuple[str, bool] | None = None
    none_of_experts: int = 0
    q_and_k_late: bool = False
    folder_less: float = 0.0
    values: bool = False


@dataclass(frozen=True)
class Rotary:
    """Rotary positions.

    `theta`: if a file has none. `part`: how much of a head rotates, if config.json has no other.
    `neighbours`: GGUF files order the rows of q and k so that the values of a pair are adjacent;
    `neighbours_in_folders`: folders do so too. `local_theta`: of layers with a window, if it differs.
    `local_unscaled`: layers with a window have the same theta, without scaling to longer texts. `none_every`:
    every n-th layer has no rotation. `windowed_only`: only layers with a window have one. `scalings`: rope
    types of config.json -> ours. `temperature`: queries are scaled by position. `nope_temperature`: those of
    layers without rotation are, by this scale and length if a file has no others. `yarn_truncates`: YaRN's
    bounds are rounded to whole pairs. config.json may say so, GGUF files do not. `log_multiplier`: YaRN's
    mscale_all_dim of 1 in GGUF files. `one_mscale`: YaRN's mscale is mscale_all_dim there. `optional`: there
    is none unless config.json has the position_embedding_type "rope", or if GGUF's rope.scaling.finetuned is
    false.
    """

    theta: float = 1e4
    part: float = 1.0
    neighbours: bool = False
    neighbours_in_folders: bool = False
    local_theta: float | None = None
    local_unscaled: bool = False
    none_every: int = 0
    windowed_only: bool = False
    scalings: Mapping[str, str] = field(default_factory=lambda: SCALINGS)
    temperature: bool = False
    nope_temperature: tuple[float, int] | None = None
    yarn_truncates: bool = True
    log_multiplier: float = 1.0
    one_mscale: bool = False
    optional: bool = False


@dataclass(frozen=True)
class Window:
    """Sliding-window attention: to the last tokens only.

    `default`: the width if config.json has none; `in_gguf`: if a GGUF file has none. `switch`: the flag of
    config.json that turns windows on. `all_but_every`: every n-th layer has full attention; `full_first`: the
    first of n layers, not the last. If config.json lists no layers, `first` is the first layer with a window
    and `until` the first without one; max_window_layers overrides both. `nope_only`: only layers without
    rotation have a window. `listed`: config.json may list the layers. `switched_by_list`: the list applies
    even if the switch is off.
    `chunked`: windows are chunks, whose tokens attend to each other, in layers with rotation if config.json
    has no list.
    """

    default: int | None = None
    in_gguf: int | None = None
    switch: str = ""
    all_but_every: int = 0
    full_first: bool = False
    first: int | None = None
    until: int | None = None
    nope_only: bool = False
    listed: bool = True
    switched_by_list: bool = False
    chunked: bool = False


@dataclass(frozen=True)
class Biases:
    """Which results have a bias in a folder: q, k and v, attention's output, the matrices of a dense
    feed-forward, the router, the experts, and the scores by which experts are selected.

    A pair is a flag of config.json and its default; a bool is always or never. GGUF files have a bias if they
    have its tensor.
    """

    qkv: tuple[str, bool] | bool = ("attention_bias", False)
    output: tuple[str, bool] | bool = ("attention_bias", False)
    feed_forward: tuple[str, bool] | bool = ("mlp_bias", False)
    router: bool = False
    experts: bool = False
    selection: tuple[str, bool] | bool = False


@dataclass(frozen=True)
class Stacks:
    """How files store all experts of a layer in one tensor. `transposed`: a matrix has a column for each
    output. `interleaved`: gate and up are one tensor, and their outputs alternate. `fused`: gate and up are
    one tensor, first all outputs of gate.
    """

    transposed: bool = False
    interleaved: bool = False
    fused: bool = False


@dataclass(frozen=True)
class Encoder:
    """What an encoder has: see `Encoding`. `skipped`: rows of a folder's table of positions that no position
    uses. `fused_qkv`: folders store q, k and v as one matrix, but not gate and up.
    """

    positions: bool = False
    skipped: int = 0
    token_types: bool = False
    embedding_norm: bool = False
    sum_norms: bool = False
    bare_first: bool = False
    fused_qkv: bool = False


@dataclass(frozen=True)
class Tiny:
    """A tiny model for tests, with transformers as the reference. `values`: of its config.json, beyond the
    sizes that all tiny models share. `gguf`: GGUF files can express all of it. `model_type`: if it is not the
    architecture's first.
    """

    values: Mapping[str, Any]
    dtype: str = "bfloat16"
    gguf: bool = True
    model_type: str = ""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """An architecture, or a variant of one that folders distinguish and GGUF files do not.

    `name`: general.architecture of GGUF files. `title`: the name for people. `model_types`: of config.json.
    `parts_of`: model types whose `text_config` is such a model. `numbers`: the keys of `keys.py` that its
    files have, besides those that all have. `keys`: fields of a `Key` that differ. `defaults`: of numbers
    that files omit; `folder_defaults`, `gguf_defaults`: of one kind of file. `gguf_names`, `folder_names`:
    names of tensors that differ from `tensor_names.py`. `sinks`: heads have attention sinks. `scales_input`:
    a router's weights multiply the input of experts, not what they add. `gated`: a feed-forward has a
    gate, and so have experts. `shared_gate`: the shared expert has a gate. `folder_stacks`: set if folders do
    not store experts one by one, or some do not: those have `stacked_names`; `gguf_stacks`: how GGUF files
    store them. `folder_fused_up`: folders store a gate and an up as one matrix, but not q, k and v.
    `dense_and_experts`: layers with experts also have a dense feed-forward, with norms of its own.
    `sizes_by_window`: layers with a window have heads of another size, and the last layers may share keys and
    values. `latent`: attention is latent, see `latent.py`. `recurrent`: the kind of mixer that some layers
    have instead of attention, and `recurrent_layers`: which, by config.json; `recurrent_in_folders`,
    `recurrent_in_gguf`: what that mixer says of how files store it; `recurrent_multipliers`: its multipliers,
    by config.json; `beside`: it is beside attention. `halves`: what each layer is, if it is a mixer or a
    feed-forward alone, by config.json. `output_gate`: attention's result is gated by a second
    half of each query. `layer_scale`: a layer's result is scaled by a weight. `refused`: flags of config.json
    that must not be set, and what is expected instead.
    `encoder`: it makes vectors of texts and does not write. `marked_by`: (model type, mark): folders of that
    type are of this architecture if config.json has this key, and it is not false, or for which this function
    is true. `renamed`: older keys of
    config.json -> those that are read. `folder_layers`: what folders call the list of layers.
    `line_pieces`: tokenizers of GGUF files are of the kind "gemma4" if their pieces are not letters.
    `stripped_names`: parts of general.name. In the GGUF files that contain one, white space after control
    tokens is stripped.
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
    folder_fused_up: bool = False
    tied: bool = False
    experts: Callable[..., tuple[bool, ...]] | None = None
    sinks: bool = False
    scales_input: bool = False
    gated: bool = True
    shared_gate: bool = True
    folder_stacks: Stacks | None = None
    stacked_names: Mapping[str, str] = field(default_factory=dict)
    gguf_stacks: Stacks = Stacks()
    dense_and_experts: bool = False
    sizes_by_window: bool = False
    latent: bool = False
    recurrent: type[Recurrent] | None = None
    recurrent_layers: Callable[..., tuple[bool, ...]] | None = None
    recurrent_in_folders: tuple[str, ...] = ()
    recurrent_in_gguf: tuple[str, ...] = ()
    recurrent_multipliers: Callable[..., tuple[float, ...]] | None = None
    beside: bool = False
    halves: Callable[..., tuple[str, ...]] | None = None
    output_gate: bool = False
    layer_scale: bool = False
    numbers: tuple[str, ...] = ()
    keys: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Default] = field(default_factory=dict)
    folder_defaults: Mapping[str, Default] = field(default_factory=dict)
    gguf_defaults: Mapping[str, Default] = field(default_factory=dict)
    gguf_names: Mapping[str, str] = field(default_factory=dict)
    folder_names: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    line_pieces: bool = False
    stripped_names: tuple[str, ...] = ()
    encoder: Encoder | None = None
    marked_by: tuple[str, str | Callable[..., bool]] | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    folder_layers: str = "layers"
    tiny: Mapping[str, Tiny] = field(default_factory=dict)

    @property
    def fixed(self) -> dict[str, Any]:
        """The fields of ModelConfig that the architecture sets and no file says."""
        return {
            "architecture": self.name,
            "pre_norms": self.norms.before,
            "post_norms": self.norms.after,
            "norm": self.norms.kind,
            "norm_bias": self.norms.bias,
            "parallel": self.norms.parallel,
            "qk_norm": self.norms.q_and_k,
            "late_qk_norm": self.norms.q_and_k_late,
            "fused": self.fused,
            "sinks": self.sinks,
            "chunked": bool(self.window and self.window.chunked),
            "scales_input": self.scales_input,
            "gated": self.gated,
            "shared_gate": self.shared_gate,
            "value_norm": self.norms.values,
            "layer_scale": self.layer_scale,
            "output_gate": self.output_gate,
            "beside": self.beside,
        }

    def but(self, name: str = "", **other: Any) -> Architecture:
        """A copy with other values. Without a `name` it is a variant: GGUF files use this one's name and are
        read as this one. A mapping is merged into this one's; an entry of `REMOVED` is removed.
        """
        own: dict[str, Any] = {"name": name or self.name, "in_gguf": bool(name), "parts_of": (), "tiny": {}}
        own["marked_by"] = None
        merged = {key: _merge(getattr(self, key), other[key]) for key in _MERGED & other.keys()}
        return dataclasses.replace(self, **own | other | merged)


_MERGED = {"keys", "defaults", "folder_defaults", "gguf_defaults", "gguf_names", "folder_names"}


def _merge(known: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**known, **other}.items() if value is not REMOVED}
