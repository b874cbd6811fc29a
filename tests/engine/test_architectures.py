"""Declarations of architectures, and that no trait of a model is ever left out in silence."""

import dataclasses
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_cases import BATCHES, Ends, batch_of, config, layer_of

from airllm.architectures import all_architectures, families, open_config, table, types_of_folders
from airllm.architectures.declaration import REMOVED, Architecture, Tiny
from airllm.architectures.families import architecture_of_gguf, architecture_of_model_type
from airllm.architectures.keys import KEYS, keys_of
from airllm.architectures.layer_spec import Encoding, LayerSizes, QueryTemperature, Rope
from airllm.architectures.model_config import ModelConfig
from airllm.architectures.recurrent import ShortConv
from airllm.backends.api.kernel_backend import KernelBackend
from airllm.engine.info import _decode
from airllm.engine.layers.native_decode import FusedLayers, FusedStep, why_not_native
from airllm.layer_engine import LayerWiseInferenceEngine
from tests.support.models.tiny_models import DATA, FOLDERS, reference, texts

ROOT = Path(__file__).parents[2]

NATIVE = {"layers", "ends"}
OTHERS: dict[str, Any] = {  # another value of each field that is a trait
    "activation": "gelu", "windows": (5, None), "local_rope": Rope(5.0, 32), "nope_layers": (True, False),
    "query_temperature": QueryTemperature(1.0, 8), "embedding_scale": 2.0, "residual_scale": 2.0,
    "logit_scale": 2.0, "attention_softcap": 3.0, "logit_softcap": 3.0, "qkv_bias": True, "output_bias": True,
    "beside": True, "attended_scale": 2.0, "gate_scale": 2.0, "down_scale": 2.0,
    "output_gate": True, "chunked": True, "scales_input": True,
    "norm": "layer", "norm_bias": True, "parallel": True, "gated": False, "mlp_bias": True,
    "late_qk_norm": True, "qk_norm": "row", "pre_norms": False, "post_norms": True, "experts": 4,
    "experts_used": 2, "expert_feed_forward": 8,
    "normalize_experts": False, "shared_expert": 8, "moe_layers": (True, False), "sinks": True,
    "sizes": (LayerSizes(6, 2, 32, 32, 160), LayerSizes(3, 1, 32, 32, 160)), "kv_layers": (0, 0),
    "recurrent": ShortConv(8, 3), "recurrent_layers": (True, False), "encoding": Encoding(),
    "shared_gate": False, "expert_scores": "sigmoid", "expert_scale": 2.0,
    "expert_groups": 2, "expert_groups_used": 2, "expert_group_best": 1, "selection_bias": True,
    "kv_rank": 64, "q_rank": 32, "value_dim": 64,
    "value_norm": True, "layer_scale": True, "layer_input": 8, "dense_and_experts": True,
    "keys_as_values": (False, True),
    "halves": ("mixer", "feed_forward"), "expert_latent": 8,
    "router_bias": True, "expert_bias": True, "swiglu_alpha": 2.0, "swiglu_limit": 1.0,
}  # fmt: skip


def traits_of(c: ModelConfig) -> set[str]:
    return {trait.partition("=")[0] for part in NATIVE for trait in c.traits(part)}


def test_fields_of_a_rotation_are_traits_too(cpp):
    """So that a rotation of a new kind is not taken for one that is known."""
    stretched = config(rope=Rope(1e4, 32, interleaved=True, scaling={"rope_type": "linear", "factor": 2.0}))
    assert stretched.traits() == {"rope.interleaved", "rope.scaling"}
    assert why_not_native(cpp, stretched, "layers") == ""

    @dataclasses.dataclass(frozen=True)
    class NewerRope(Rope):
        mirrored: bool = False

    newer = config(rope=NewerRope(1e4, 32, mirrored=True), local_rope=NewerRope(5.0, 32))
    assert newer.traits() == {"rope.mirrored", "local_rope"}
    assert why_not_native(cpp, newer, "layers") == "native layers of cpp do not support rope.mirrored"


def test_every_field_that_layers_or_ends_depend_on_is_a_trait():
    fields = {f.name: f.metadata.get("of", "layers") for f in dataclasses.fields(ModelConfig)}
    assert {name for name, part in fields.items() if part in NATIVE} - {"rope"} == set(OTHERS)
    assert traits_of(config()) == set()
    for name, value in OTHERS.items():
        assert traits_of(config(**{name: value})) == {name}


@dataclasses.dataclass(frozen=True)
class Newer(ModelConfig):
    """A model with a number that is not known yet."""

    new_scale: float = 1.0


@pytest.fixture
def cpp() -> KernelBackend:
    ops = KernelBackend("cpp")
    if ops.extension("decoder_traits") is None:
        pytest.skip("the C++ backend is not built")
    return ops


def test_a_new_number_is_never_ignored(cpp):
    newer = Newer(**vars(config()) | {"new_scale": 2.0})
    fused = FusedLayers(cpp, [dataclasses.replace(layer_of(config(), 0), config=newer)])
    assert fused.why_not == "native layers of cpp do not support new_scale" and not fused.prepared
    _, _, rows = batch_of(config(), BATCHES["short"])
    assert not fused.supports(rows)
    same = Newer(**vars(config()))
    assert not FusedLayers(cpp, [dataclasses.replace(layer_of(config(), 0), config=same)]).why_not


def test_a_number_of_the_ends_keeps_only_the_ends_from_being_native(cpp, monkeypatch):
    ends = Ends(config(logit_scale=0.5), "f32")
    traits = cpp.extension("decoder_traits")
    less = {**traits, "ends": traits["ends"] - {"logit_scale"}}
    found = KernelBackend.extension
    monkeypatch.setattr(
        KernelBackend, "extension", lambda ops, name: less if name == "decoder_traits" else found(ops, name)
    )
    layers = FusedLayers(cpp, ends.layers)
    step = FusedStep(cpp, layers, ends.config, ends.embedding, ends.norm, ends.output)
    assert not layers.why_not and step.why_not == "native ends of cpp do not support logit_scale"


def test_what_is_known_natively_exists(cpp):
    """A name that no configuration has would be a trait that is never refused."""
    for part, known in cpp.extension("decoder_traits").items():
        fields = {f.name for f in dataclasses.fields(ModelConfig) if f.metadata.get("of", "layers") == part}
        assert {re.split(r"[=.]", trait)[0] for trait in known} <= fields
        assert why_not_native(cpp, config(), part) == ""


TOGETHER = {  # what native layers know each, and do not compute together
    "experts without pre-norms": (
        {"experts": 4, "experts_used": 2, "expert_feed_forward": 64, "pre_norms": False, "post_norms": True},
        "experts take their input from a norm before them",
    ),
    "no norms": ({"pre_norms": False}, "a half of a layer has a norm before it or after it"),
}


@pytest.mark.parametrize("what", TOGETHER)
def test_what_native_layers_do_not_compute_together_is_known_without_weights(cpp, what):
    """And the class of a layer refuses the same, asked by itself."""
    changes, why = TOGETHER[what]
    made = config(**changes)
    assert why_not_native(cpp, made, "layers") == f"native layers of cpp: {why}"
    for name in changes:
        assert why_not_native(cpp, config(**{name: changes[name], "post_norms": True}), "layers") == ""
    layer = layer_of(made, 0)
    numbers = {name: getattr(made, name) for name in ("heads", "kv_heads", "head_dim", "norm_eps")}
    experts = [(np.ones((8, made.width), np.float32),) * 3] * made.experts
    with pytest.raises(NotImplementedError, match=why):
        cpp.extension("DecoderLayer")(
            layer.weights, **numbers, attention_scale=1.0, interleaved=False, rotation=0,
            experts=experts, pre_norms=False, activation="silu",
        )  # fmt: skip


POST_NORM_EXPERTS = """
from airllm.architectures.declaration import Norms
from airllm.architectures.families.mistral import MIXTRAL

ACME = MIXTRAL.but("acme", title="Acme 1", model_types=("acme",), norms=Norms(before=False, after=True))
"""


def test_info_of_an_architecture_that_no_native_layer_computes(cpp, tmp_path, monkeypatch):
    (tmp_path / "acme.py").write_text(POST_NORM_EXPERTS)
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])
    all_architectures.cache_clear()
    try:
        made = open_config(copy_of("mixtral", tmp_path, model_type="acme"))
        assert _decode(cpp, open_config(DATA / "mixtral")) == "all layers in one call"
        assert (
            _decode(cpp, made)
            == f"op by op: native layers of cpp: {TOGETHER['experts without pre-norms'][1]}"
        )
    finally:
        sys.modules.pop("airllm.architectures.families.acme", None)
        all_architectures.cache_clear()


def test_what_differs_is_merged_into_what_is_known():
    """REMOVED takes an entry away; None, which means "not limited" and the like, is a value."""
    plain = Architecture(name="plain", title="Plain", model_types=())
    first = plain.but("first", folder_defaults={"norm_eps": 1e-6, "head_dim": 64, "kv_heads": 2})
    second = first.but("second", folder_defaults={"kv_heads": None, "heads": 8, "head_dim": REMOVED})
    assert second.folder_defaults == {"norm_eps": 1e-6, "kv_heads": None, "heads": 8}
    assert first.folder_defaults == first.but("same").folder_defaults
    assert first.folder_defaults["head_dim"] == 64


@pytest.mark.parametrize("each", all_architectures(), ids=lambda each: each.title)
def test_a_declaration_says_what_there_is(each: Architecture):
    assert set(each.keys) | set(each.numbers) <= set(KEYS)
    assert set(each.defaults) | set(each.folder_defaults) | set(each.gguf_defaults) <= set(KEYS)
    assert architecture_of_gguf(each.name) and (not each.in_gguf or architecture_of_gguf(each.name) is each)
    assert all(architecture_of_model_type(name) is each for name in each.model_types)
    names = [key.gguf for _, key in keys_of(each) if key.gguf]
    assert len(names) == len(set(names))


def test_each_architecture_has_a_tiny_model_or_is_another_by_name():
    """One without is the same as another but for its name, in the places where that is tested."""
    without = {each.title for each in all_architectures() if not each.tiny}
    assert without == {"Qwen 3-VL with experts, for text"}
    assert {path.name for path in DATA.iterdir() if path.is_dir()} == set(FOLDERS)
    assert all(isinstance(tiny, Tiny) for each in all_architectures() for tiny in each.tiny.values())
    assert len(table()) == len(all_architectures())


def test_the_guide_adds_an_architecture(tmp_path, monkeypatch):
    """Its file alone makes a model run from a folder and from a GGUF file, and stand in the lists."""
    section = (ROOT / "BACKEND_GUIDE.md").read_text().partition("## Adding an architecture")[2]
    (tmp_path / "acme.py").write_text(re.search(r"```python\n(.*?)```", section, re.S)[1])
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])
    all_architectures.cache_clear()
    try:
        path = copy_of("qwen3", tmp_path, model_type="acme", residual_multiplier=1.0)
        with open_engine(path) as engine:
            assert engine.config.architecture == "acme"
            agrees(engine, "qwen3")
        assert ("Acme 1", "`acme`", "`acme`") in table() and "acme" in types_of_folders()
        assert (
            open_config(copy_of("qwen3", tmp_path, model_type="acme", residual_multiplier=0.5)).residual_scale
            == 0.5
        )
    finally:
        sys.modules.pop("airllm.architectures.families.acme", None)
        all_architectures.cache_clear()


def open_engine(path: Path) -> LayerWiseInferenceEngine:
    return LayerWiseInferenceEngine(path, backend="python", cache_dtype="f32")


def agrees(engine: LayerWiseInferenceEngine, name: str) -> None:
    for text, wanted in zip(texts(), reference(name), strict=True):
        found = engine.forward(text, all_positions=True)
        assert np.abs(found - wanted).max() < 2e-4 * np.ptp(wanted)


def copy_of(name: str, tmp_path: Path, **changes: Any) -> Path:
    path = shutil.copytree(DATA / name, tmp_path / name, dirs_exist_ok=True)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | changes))
    return path
