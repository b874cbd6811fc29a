"""The numbers of a model: one row for each, with its keys in GGUF files and config.json.

These rows alone read and write them. Windows and rotary positions, which are more than a number, are in
`windows.py` and `ropes.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import isclose, sqrt
from typing import Any

from airllm.architectures.declaration import Architecture
from airllm.architectures.model_config import ModelConfig
from airllm.architectures.values import MOST_LAYERS, Values

Found = Mapping[str, Any]
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}


def identity(value: Any) -> Any:
    return value


def inverse(value: float) -> float:
    return 1 / value


@dataclass(frozen=True)
class Key:
    """A number in files.

    `gguf`: its key there, after the architecture's name; `also`: another, which is read if that is missing;
    both are written. `folder`: its key in config.json, or several; if
    none of them is present, messages name the last. "": such files do not have it. `check`: the method of
    `Values` that reads it. `default`: a value, or a function of the numbers read before, which may raise
    ValueError with what is expected; ... if a file must have it. `of_gguf`, `of_folder`: convert the file's
    number to ours; `of_gguf` is its own inverse. `null`: JSON's null means None, not the default. `implied`:
    not written if it equals the default. `moe`: only for models with experts. `all`: every architecture may
    have it; if False, those that have it list it in `numbers`.
    """

    gguf: str = ""
    folder: str | tuple[str, ...] = ""
    check: Callable[..., Any] = Values.whole
    default: Any = ...
    of_gguf: Callable[[Any], Any] = identity
    of_folder: Callable[[Any], Any] = identity
    null: bool = False
    implied: bool = False
    also: str = ""
    moe: bool = False
    all: bool = True

    def read_gguf(self, values: Values, default: Any, found: Found) -> Any:
        name = self.also if self.also and self.gguf not in values else self.gguf
        return self._read(values, name, self.of_gguf, default, found)

    def read_folder(self, values: Values, default: Any, found: Found) -> Any:
        names = (self.folder,) if isinstance(self.folder, str) else self.folder
        name = next((each for each in names if each in values), names[-1])
        return self._read(values, name, self.of_folder, default, found)

    def _read(self, values: Values, name: str, ours: Callable, default: Any, found: Found) -> Any:
        value = self.check(values, name, ... if default is ... else None) if name else None
        if value is not None:
            return ours(value)
        if self.null and name in values:
            return None
        try:
            return default(found) if callable(default) else default
        except ValueError as expected:
            raise values.error(name, "is missing", str(expected)) from None


def number_of(name: str) -> Callable[[Found], Any]:
    """A default that copies another number."""
    return lambda found: found[name]


def _share_of_width(found: Found) -> int:
    if found["width"] < found["heads"]:
        raise ValueError(f"it, where {found['heads']} heads share a width of {found['width']}")
    return found["width"] // found["heads"]


_whole_or_0 = partial(Values.whole, least=0)
_SCORES = {1: "", 2: "sigmoid"}  # expert_gating_func -> how a router's logits become scores; "": softmax


def _gating(values: Values, key: str, default: Any) -> Any:
    """The number of a function of routers that is known."""
    found = values.whole(key, default)
    if found is not default and found not in _SCORES:
        raise values.error(key, f"has value {found}", f"one of {', '.join(map(str, _SCORES))}")
    return found


def _score_of(function: Any) -> Any:
    """The name of a function's number, or the number of its name."""
    return _SCORES[function] if isinstance(function, int) else {v: k for k, v in _SCORES.items()}[function]


_scale = partial(Key, check=Values.number, default=1.0, implied=True, all=False)
_softcap = partial(Key, check=Values.number, default=None, null=True, implied=True)
_expert = partial(Key, moe=True)
KEYS: dict[str, Key] = {
    "layers": Key("block_count", "num_hidden_layers", partial(Values.whole, most=MOST_LAYERS)),
    "width": Key("embedding_length", "hidden_size"),
    "heads": Key("attention.head_count", "num_attention_heads"),
    "kv_heads": Key("attention.head_count_kv", "num_key_value_heads", default=number_of("heads")),
    "head_dim": Key("attention.key_length", "head_dim", default=_share_of_width),
    "feed_forward": Key("feed_forward_length", "intermediate_size"),
    "vocabulary": Key("vocab_size", "vocab_size"),
    "context": Key("context_length", "max_position_embeddings"),
    "norm_eps": Key("attention.layer_norm_rms_epsilon", "rms_norm_eps", Values.number),
    "activation": Key("", "hidden_act", partial(Values.one_of, known=ACTIVATIONS), default="silu"),
    "attention_scale": Key(
        "attention.scale", "", Values.number, default=lambda f: 1 / sqrt(f["head_dim"]), implied=True
    ),
    "attention_softcap": _softcap("attn_logit_softcapping", "attn_logit_softcapping"),
    "logit_softcap": _softcap("final_logit_softcapping", "final_logit_softcapping"),
    "embedding_scale": _scale("embedding_scale", "embedding_multiplier"),
    "residual_scale": _scale("residual_scale", "residual_multiplier"),
    "logit_scale": _scale("logit_scale", "logits_scaling", of_gguf=inverse, of_folder=inverse),
    "attended_scale": _scale("", ""),
    "gate_scale": _scale("", ""),
    "down_scale": _scale("", ""),
    "experts": _expert("expert_count", ("num_local_experts", "num_experts", "n_routed_experts")),
    "experts_used": _expert("expert_used_count", "num_experts_per_tok"),
    "expert_feed_forward": _expert(
        "expert_feed_forward_length", "moe_intermediate_size", default=number_of("feed_forward")
    ),
    "expert_latent": _expert(
        "moe_latent_size", "moe_latent_size", _whole_or_0, default=0, implied=True, all=False
    ),
    "normalize_experts": _expert("expert_weights_norm", "norm_topk_prob", Values.flag, default=True),
    "shared_experts": _expert("expert_shared_count", "n_shared_experts", default=0, all=False),
    "shared_expert": _expert(
        "expert_shared_feed_forward_length",
        "shared_expert_intermediate_size",
        default=lambda f: f["shared_experts"] * f["expert_feed_forward"],
        all=False,
    ),
    "dense_layers": _expert("leading_dense_block_count", "", _whole_or_0, default=0, all=False),
    "moe_step": _expert("interleave_moe_layer_step", "", default=1, all=False),
    "expert_scores": _expert("expert_gating_func", "", _gating, default="", all=False, of_gguf=_score_of),
    "expert_scale": _expert(
        "expert_weights_scale", "routed_scaling_factor", Values.number, default=1.0, all=False
    ),
    "expert_groups": _expert("expert_group_count", "n_group", default=1, all=False),
    "expert_groups_used": _expert("expert_group_used_count", "topk_group", default=1, all=False),
    "expert_group_best": _expert("", "", default=2, all=False),
    "q_rank": Key("attention.q_lora_rank", "q_lora_rank", default=0, implied=True, all=False),
    "kv_rank": Key("attention.kv_lora_rank", "kv_lora_rank", default=0, all=False),
    "value_dim": Key("attention.value_length_mla", "v_head_dim", default=0, all=False),
    "layer_input": Key(
        "embedding_length_per_layer_input", "hidden_size_per_layer_input", _whole_or_0, default=0, all=False
    ),
    "swiglu_alpha": Key("", "swiglu_alpha", Values.number, default=1.702, all=False),
    "swiglu_limit": Key("", "swiglu_limit", Values.number, default=7.0, all=False),
}


def keys_of(architecture: Architecture) -> Iterator[tuple[str, Key]]:
    """All numbers, with the architecture's own keys and defaults. A number that it lacks has no key in its
    files, so it takes its default.
    """
    for name, key in KEYS.items():
        own = dict(architecture.keys.get(name, {}))
        if name in architecture.defaults:
            own["default"] = architecture.defaults[name]
        if not (key.all or name in architecture.numbers):
            own |= {"gguf": "", "folder": ""}
        yield name, replace(key, **own)


def write_keys(architecture: Architecture, config: ModelConfig) -> Iterator[tuple[str, Any]]:
    """The keys of a GGUF file, after the architecture's name, and their values for a model."""
    found = vars(config)
    for name, key in keys_of(architecture):
        default = architecture.gguf_defaults.get(name, key.default)
        value = found[name]
        if not key.gguf or value is None or (key.moe and not config.experts):
            continue
        if key.implied and _is_close(value, default(found) if callable(default) else default):
            continue
        yield from ((name, key.of_gguf(value)) for name in (key.gguf, key.also) if name)


def _is_close(value: float, default: float | None) -> bool:
    return default is not None and isclose(value, default)
