"""Reads and writes the sizes of a model's layers, where they differ: lists with an item for each layer, and
layers without a window that have larger heads and fewer of them (Gemma 4).
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from airllm.architectures.declaration import Architecture
from airllm.architectures.keys import keys_of
from airllm.architectures.latent import rotated_dim
from airllm.architectures.layer_spec import LayerSizes
from airllm.architectures.model_config import FEED_FORWARD, MIXER, ModelConfig
from airllm.architectures.values import MOST_LAYERS, Values
from airllm.architectures.windows import Windows

_LISTED = ("heads", "kv_heads", "feed_forward")  # GGUF files may have a list of them
_NEAR_DIM = {"gguf": "attention.key_length_swa", "folder": "head_dim"}  # of layers with a window
_SHARED = {"gguf": "attention.shared_kv_layers", "folder": "num_kv_shared_layers"}
_FULL_DIM, _FULL_KV_HEADS, _EACH = "global_head_dim", "num_global_key_value_heads", "per_layer_config"
_DEFAULT_FULL_DIM = 512


def _shared_layers(values: Values, kind: str, windows: Windows) -> tuple[int, ...]:
    """The layer whose keys and values each layer reads. The last ones share those of the last layer before
    them that has, or lacks, a window as they do. () if none are shared.
    """
    layers = len(windows)
    own = layers - values.whole(_SHARED[kind], 0, layers - 1, least=0)
    if own == layers:
        return ()
    last = {bool(windows[layer]): layer for layer in range(own)}
    if any(bool(each) not in last for each in windows[own:]):
        found = f"has value {layers - own}"
        raise values.error(_SHARED[kind], found, f"layers of each kind before those {layers - own}")
    return tuple(layer if layer < own else last[bool(windows[layer])] for layer in range(layers))


def _refuse_unequal(values: Values, kind: str, shared: tuple[int, ...], sizes: list[LayerSizes]) -> None:
    """Raise ModelFileError if a layer reads keys and values of another size than its own."""
    for layer, source in enumerate(shared):
        own, read = ((each.kv_heads, each.head_dim, each.value_dim) for each in (sizes[layer], sizes[source]))
        if own != read:
            found = f"lets layer {layer} of {own[0]} heads of {own[1]} values read those of layer {source}"
            raise values.error(
                _SHARED[kind], found, f"{own[0]} heads of {own[1]}, not {read[0]} of {read[1]}"
            )


def _unless_plain(found: dict[str, Any], sizes: list[LayerSizes]) -> tuple[LayerSizes, ...]:
    """The sizes of each layer; () if they are those of the whole model."""
    dim = found["head_dim"]
    plain = LayerSizes(found["heads"], found["kv_heads"], dim, dim, found["feed_forward"])
    return () if all(each == plain for each in sizes) else tuple(sizes)


# ------------------------------------------------------------------------------------------- config.json


def folder_head_dims(architecture: Architecture, values: Values, head_dim: int) -> tuple[int, int]:
    """Values of a head, in layers without and with a window; in latent attention, those that rotate."""
    if architecture.latent:
        return (rotated_dim(values),) * 2
    if not architecture.sizes_by_window:
        return head_dim, head_dim
    each = values.below(_EACH)
    some = [each.below(layer) for layer in map(str, range(MOST_LAYERS)) if layer in each] if each else []
    given = [layer.whole("head_dim", head_dim) for layer in some if layer]
    return values.whole(_FULL_DIM, max(given, default=_DEFAULT_FULL_DIM)), head_dim


def folder_sizes(
    architecture: Architecture, values: Values, found: dict[str, Any], windows: Windows
) -> dict[str, Any]:
    """The fields of ModelConfig for the sizes of layers and for what they share. `found` has the numbers of
    the whole model, and is corrected where layers are larger.
    """
    if not architecture.sizes_by_window:
        return {}
    near = found["head_dim"]
    far, _ = folder_head_dims(architecture, values, near)
    shared = _shared_layers(values, "folder", windows)
    alike = values.flag("attention_k_eq_v", False)
    far_heads = values.whole(_FULL_KV_HEADS, found["kv_heads"]) if alike else found["kv_heads"]
    twice = values.flag("use_double_wide_mlp", False)
    sizes = []
    for layer, window in enumerate(windows):
        own = (values.below(_EACH) or values).below(str(layer))
        dim, kv_heads = (near, found["kv_heads"]) if window else (far, far_heads)
        dim = own.whole("head_dim", dim) if own else dim
        kv_heads = own.whole("num_key_value_heads", kv_heads) if own else kv_heads
        wide = found["feed_forward"] * (1 + (twice and bool(shared) and shared[layer] != layer))
        sizes.append(LayerSizes(found["heads"], kv_heads, dim, dim, wide))
    _refuse_unequal(values, "folder", shared, sizes)
    for name in ("kv_heads", "head_dim", "feed_forward"):
        found[name] = max(getattr(each, name) for each in sizes)
    keys = tuple(alike and not window for window in windows) if alike else ()
    return {"sizes": _unless_plain(found, sizes), "kv_layers": shared, "keys_as_values": keys}


# -------------------------------------------------------------------------------------------------- GGUF


def gguf_lists(architecture: Architecture, values: Values) -> dict[str, list[int]]:
    """The sizes that have a value for each layer. That of a layer without such a part is the largest."""
    keys = dict(keys_of(architecture))
    layers = values.whole(keys["layers"].gguf, most=MOST_LAYERS)
    least = 0 if architecture.recurrent else 1
    found = {name: values.wholes(keys[name].gguf, layers, least) for name in _LISTED}
    return {name: [each or max(*some, 1) for each in some] for name, some in found.items() if some}


def gguf_halves(architecture: Architecture, values: Values, layers: int) -> tuple[str, ...]:
    """What each layer is, if it is a mixer or a feed-forward alone: only the latter has a width."""
    if not architecture.halves:
        return ()
    keys = dict(keys_of(architecture))
    key, every = keys["feed_forward"].gguf, values.whole(keys["layers"].gguf, most=MOST_LAYERS)
    widths = values.wholes(key, every, least=0)
    if widths is None:
        expected = "a list that has the width of each layer, 0 for one without a feed-forward"
        raise values.error(key, f"has value {values.raw(key)}", expected)
    return tuple(FEED_FORWARD if wide else MIXER for wide in widths[:layers])


def gguf_near_dim(architecture: Architecture, values: Values, head_dim: int) -> int:
    """Values of a head in layers with a window."""
    return values.whole(_NEAR_DIM["gguf"], head_dim) if architecture.sizes_by_window else head_dim


def gguf_sizes(
    architecture: Architecture,
    values: Values,
    found: dict[str, Any],
    lists: dict[str, list[int]],
    windows: Windows,
    tensors: Container[str],
) -> dict[str, Any]:
    """The fields of ModelConfig for the sizes of layers and for what they share."""
    near = gguf_near_dim(architecture, values, found["head_dim"])
    sizes = []
    for layer, window in enumerate(windows):
        heads, kv_heads, wide = (lists[name][layer] if name in lists else found[name] for name in _LISTED)
        dim = near if window else found["head_dim"]
        sizes.append(LayerSizes(heads, kv_heads, dim, dim, wide))
    fields: dict[str, Any] = {"sizes": _unless_plain(found, sizes)}
    if not architecture.sizes_by_window:
        return fields
    shared = _shared_layers(values, "gguf", windows)
    _refuse_unequal(values, "gguf", shared, sizes)
    keys = tuple(
        not window and f"blk.{layer}.attn_v.weight" not in tensors and not (shared and shared[layer] != layer)
        for layer, window in enumerate(windows)
    )
    return fields | {"kv_layers": shared, "keys_as_values": keys if any(keys) else ()}


def write_sizes(architecture: Architecture, config: ModelConfig) -> dict[str, Any]:
    """The keys of the sizes of layers."""
    keys, found = dict(keys_of(architecture)), dict[str, Any]()
    for name in _LISTED if config.sizes else ():
        each = [getattr(sizes, name) for sizes in config.sizes]
        if len(set(each)) > 1:
            found[keys[name].gguf] = each
    if architecture.sizes_by_window:
        near = next((config.sizes_of(i).head_dim for i, w in enumerate(config.windows) if w), config.head_dim)
        found |= {_NEAR_DIM["gguf"]: near, "attention.value_length_swa": near}
    if config.halves:
        every = range(config.layers)
        mixed = [config.has_mixer(i) and not config.is_recurrent(i) for i in every]
        found[keys["kv_heads"].gguf] = [config.kv_heads * each for each in mixed]
        found[keys["feed_forward"].gguf] = [config.feed_forward * config.has_feed_forward(i) for i in every]
    shared = sum(source != layer for layer, source in enumerate(config.kv_layers))
    return found | ({_SHARED["gguf"]: shared} if architecture.sizes_by_window else {})
