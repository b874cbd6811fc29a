"""Files as the engine meets them: in older words, beside a part for images, broken."""

import gc
import json
import re
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from airllm.architectures import open_config
from airllm.engine import info
from airllm.files import ModelFileError
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.text.chat_template import open_chat_template
from airllm.text.open_tokenizer import open_tokenizer
from tests.support.models import tiny_gguf, tiny_gguf_names, tiny_gguf_tensors, tiny_models
from tests.support.models.tiny_models import DATA, SHORT, reference

EXACT = 2e-4
TEXTS = tiny_models.texts()


def logits_of(path: Path, text: list[int]) -> np.ndarray:
    with LayerWiseInferenceEngine(path, backend="python", cache_dtype="f32") as engine:
        return engine.forward(text, all_positions=True)


def far(path: Path, name: str, text: int = 0) -> float:
    wanted = reference(name)[text]
    return float(np.abs(logits_of(path, TEXTS[text]) - wanted).max() / np.ptp(wanted))


def copy_of(name: str, folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]] = dict) -> Path:
    """A tiny model's folder with another config.json."""
    shutil.copytree(DATA / name, path := folder / name)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(change(config)))
    return path


def with_tensors(path: Path, change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> Path:
    """The same folder with other tensors, which lie in one file."""
    tensors = load_file(path / "model.safetensors")
    save_file({k: np.ascontiguousarray(v) for k, v in change(tensors).items()}, path / "model.safetensors")
    return path


# --------------------------------------------------------------------------------------- other ways to say it


def in_older_words(config: dict[str, Any]) -> dict[str, Any]:
    """As files were written before transformers 5: the rotation in keys of its own."""
    rope = config.pop("rope_parameters")
    near = rope.get("sliding_attention")
    rope = dict(rope.get("full_attention", rope))
    found = {"rope_theta": rope.pop("rope_theta")}
    if near:
        found["rope_local_base_freq"] = near["rope_theta"]
    if part := rope.pop("partial_rotary_factor", None):
        found["partial_rotary_factor"] = part
    kind = rope.pop("rope_type")
    if kind != "default":
        found["rope_scaling"] = {**rope, "type": kind}
    for new in ("layer_types", "dtype"):
        config.pop(new, None)
    return {**config, **found}


@pytest.mark.parametrize(
    "name",
    ("llama2", "llama3", "llama_linear", "qwen3", "gemma2", "gemma3", "phi3_long", "granite", "smollm3",
     "smollm3_window", "olmo2", "qwen2_moe", "qwen2_moe_some", "seed_oss", "ministral3", "gemma", "cohere2",
     "starcoder2", "hunyuan_dense", "ernie_moe", "llama4"),
)  # fmt: skip
def test_older_words(tmp_path, name):
    assert far(copy_of(name, tmp_path, in_older_words), name) < EXACT


@pytest.mark.parametrize("word", ("su", "yarn"))
def test_phi3_had_other_words_for_longrope(tmp_path, word):
    def change(config):
        found = in_older_words(config)
        return {**found, "rope_scaling": {**found["rope_scaling"], "type": word}}

    path = copy_of("phi3_long", tmp_path, change)
    assert far(path, "phi3_long") < EXACT and far(path, "phi3_long", 1) < EXACT


def test_hunyuan_repeats_numbers_for_each_layer(tmp_path):
    repeated = {"moe_topk": [2, 2], "num_shared_expert": [1, 1], "moe_intermediate_size": [32, 32]}
    path = copy_of("hunyuan_moe", tmp_path, lambda config: config | repeated)
    assert far(path, "hunyuan_moe") < EXACT
    for wrong in ([2, 3], [], [2, True]):
        path = copy_of("hunyuan_moe", tmp_path / str(wrong), lambda c, w=wrong: c | {"moe_topk": w})
        raises(path, r"config.json: key moe_topk has items \[.*, expected a whole number, or the same")


def test_llama4_leaves_layers_out_and_counts_its_tuning(tmp_path):
    """Its first files have an empty list of layers, and a number as the flag."""
    older = {"no_rope_layers": [], "attn_temperature_tuning": 4, "moe_layers": None, "layer_types": None}
    assert far(copy_of("llama4", tmp_path, lambda config: config | older), "llama4") < EXACT


def test_smollm3_says_no_layers_without_rope(tmp_path):
    """Every fourth has none then."""
    path = copy_of(
        "smollm3", tmp_path, lambda config: {k: v for k, v in config.items() if "no_rope" not in k}
    )
    assert far(path, "smollm3") < EXACT


@pytest.mark.parametrize("name", ("mistral3", "mistral_small", "qwen3_vl"))
def test_a_part_for_text_in_older_words(tmp_path, name):
    def change(config):
        sections = {
            k: v for k, v in config["text_config"]["rope_parameters"].items() if k.startswith("mrope")
        }
        text = in_older_words(config["text_config"])
        if sections:  # positions of text are the same in all of them
            text["rope_scaling"] = {**sections, "rope_type": "default"}
        return {**config, "text_config": text}

    assert far(copy_of(name, tmp_path, change), name) < EXACT


@pytest.mark.parametrize("model_type", ("qwen2_vl", "qwen2_5_vl"))
def test_qwen_vl_had_no_part_for_text(tmp_path, model_type):
    def change(config):
        text = in_older_words(config.pop("text_config"))
        scaling = {"type": "mrope", "mrope_section": [4, 2, 2]}
        return {**text, **config, "model_type": model_type, "rope_scaling": scaling}

    assert far(copy_of("qwen2_5_vl", tmp_path, change), "qwen2_5_vl") < EXACT


@pytest.mark.parametrize(
    ("name", "kind", "architecture"),
    (
        ("qwen3_moe", "qwen3_moe", "qwen3vlmoe"),
        ("qwen2", "qwen2", "qwen2vl"),
        ("qwen3", "qwen3", "qwen3vl"),
        ("mistral_small", "mistral3", "llama"),
    ),
)
def test_the_same_by_another_architecture_of_gguf(tmp_path, monkeypatch, name, kind, architecture):
    monkeypatch.setitem(tiny_gguf_names.ARCHITECTURES, kind, architecture)
    assert far(tiny_gguf.write_gguf(name, tmp_path / "model.gguf"), name) < EXACT


def test_the_gate_of_a_shared_expert_as_a_vector(tmp_path, monkeypatch):
    """As converters wrote it in 2024."""
    config, tensors = tiny_models.read_folder("qwen2_moe")
    vectors = {k: v[0] if "shared_expert_gate" in k else v for k, v in tensors.items()}
    monkeypatch.setattr(tiny_gguf, "read_folder", lambda name: (config, vectors))
    assert far(tiny_gguf.write_gguf("qwen2_moe", tmp_path / "model.gguf"), "qwen2_moe") < EXACT


@pytest.mark.parametrize("prefix", ("language_model.model.", "model.language_model."))
def test_a_language_model_beside_a_part_for_images(tmp_path, prefix):
    path = copy_of("gemma3", tmp_path, lambda config: {"model_type": "gemma3", "text_config": config})
    images = {"vision_tower.patch.weight": np.zeros((3, 3), np.float32)}
    with_tensors(path, lambda old: {k.replace("model.", prefix): v for k, v in old.items()} | images)
    assert far(path, "gemma3") < EXACT


# ---------------------------------------------------------------------------------------------- broken files


def raises(path: Path, message: str) -> None:
    with pytest.raises(ModelFileError) as error:
        LayerWiseInferenceEngine(path, backend="python")
    text = str(error.value)
    assert re.search(message, text) and text.startswith(str(path)) and "\n" not in text, text


def test_an_architecture_that_is_not_known(tmp_path):
    path = copy_of("llama2", tmp_path, lambda config: {**config, "model_type": "mamba"})
    raises(path, "config.json: key model_type has value 'mamba', expected one of bert, cohere2, ")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiny_gguf_names.ARCHITECTURES, "llama", "mamba")
        patch.setattr(tiny_gguf_tensors, "gguf_name", lambda config, name: name)
        path = tiny_gguf.write_gguf("llama2", tmp_path / "mamba.gguf")
    raises(path, "key general.architecture has value 'mamba', expected one of bert, cohere2, ")


LAYER = "model.layers.1."
NORM, DOWN = f"{LAYER}input_layernorm.weight", f"{LAYER}mlp.down_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    (
        (lambda t: {k: v for k, v in t.items() if k != DOWN}, f"tensor {DOWN} is missing, expected one of "),
        (lambda t: {k: v for k, v in t.items() if "lm_head" not in k}, "tensor lm_head.weight is missing"),
        (lambda t: {k: v for k, v in t.items() if "embed" not in k}, "tensor model.embed_tokens.weight is"),
        (lambda t: {**t, DOWN: t[DOWN].T}, rf"tensor {DOWN} has shape \(64, 32\), expected \(32, 64\), as"),
        (lambda t: {**t, NORM: t[NORM][:31]}, rf"tensor {NORM} has shape \(31,\), expected \(32,\)"),
        (lambda t: {**t, DOWN: t[DOWN].astype(np.int8)}, f"tensor {DOWN} has type int8, expected float32"),
        (lambda t: {**t, NORM: t[NORM].astype(np.int64)}, f"tensor {NORM} has type int64, expected float32"),
        (lambda t: {**t, "model.embed_tokens.weight": t["model.embed_tokens.weight"][1:]},
         r"tensor model.embed_tokens.weight has shape \(79, 32\), expected \(80, 32\)"),
    ),
)  # fmt: skip
def test_tensors_that_are_not_what_they_should_be(tmp_path, change, message):
    raises(with_tensors(copy_of("llama2", tmp_path), change), message)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    (
        ("qwen3_moe", {"num_local_experts": 7}, r"mlp.gate.weight has shape \(6, 32\), expected \(7, 32\)"),
        ("qwen3_moe", {"num_local_experts": 5}, r"mlp.gate.weight has shape \(6, 32\), expected \(5, 32\)"),
        ("qwen3_moe", {"moe_intermediate_size": 48},
         r"experts.0.gate_proj.weight has shape \(32, 32\), expected \(48, 32\)"),
        ("qwen3_moe_some", {"mlp_only_layers": []}, "tensor model.layers.1.mlp.gate.weight is missing"),
        ("qwen3", {"num_key_value_heads": 1}, r"k_proj.weight has shape \(64, 32\), expected \(32, 32\)"),
        ("phi3", {"num_key_value_heads": 2}, r"qkv_proj.weight has shape \(64, 32\), expected \(96, 32\)"),
        ("gemma2", {"use_bidirectional_attention": True}, "key use_bidirectional_attention is true, exp"),
        ("granite_hybrid", {"mamba_n_groups": 3}, "mamba_n_groups has value 3, expected a divisor of the 4"),
        ("granite_hybrid", {"layer_types": [{}]}, r"layer_types has 1 items \['{}'\], expected \d of mamba"),
        ("qwen3_next", {"linear_num_key_heads": 3}, "linear_num_key_heads has value 3, expected a divisor"),
    ),
)  # fmt: skip
def test_a_configuration_of_another_model(tmp_path, name, change, message):
    raises(copy_of(name, tmp_path, lambda config: {**config, **change}), message)


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    (
        ("llama3", "low_freq_factor", None, "rope_parameters.low_freq_factor is missing, expected a number"),
        ("llama3", "factor", "8", "rope_parameters.factor has value '8', expected a number above 0"),
        ("llama_linear", "factor", 0, "rope_parameters.factor has value 0, expected a number above 0"),
        ("qwen3", "factor", None, "rope_parameters.factor is missing"),
        ("phi3_long", "long_factor", None, "rope_parameters.long_factor is missing, expected 6 numbers"),
        ("phi3_long", "short_factor", [1.0] * 5, "rope_parameters.short_factor has 5 items, expected 6 numb"),
        (
            "phi3_long",
            "short_factor",
            [1.0] * 5 + ["1"],
            "rope_parameters.short_factor has 6 items, expected 6",
        ),
        (
            "phi3_long",
            "rope_type",
            "llama3",
            "rope_type has value 'llama3', expected one of default, longrope",
        ),
    ),
)
def test_rotations_that_lack_something(tmp_path, name, key, value, message):
    def change(config):
        return {**config, "rope_parameters": {**config["rope_parameters"], key: value}}

    raises(copy_of(name, tmp_path, change), message)


def test_a_rotation_that_cannot_be_computed(tmp_path):
    def change(config):
        return {**config, "rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1.0}}

    raises(copy_of("llama2", tmp_path, change), "the rotation of positions cannot be computed")


def test_factors_of_another_length(tmp_path, monkeypatch):
    monkeypatch.setattr(tiny_gguf_tensors, "_llama3_factors", lambda config: np.ones(7, np.float32))
    path = tiny_gguf.write_gguf("llama3", tmp_path / "model.gguf")
    raises(path, r"tensor rope_freqs.weight has shape \(7,\), expected \(8,\)")


@pytest.mark.parametrize("stored", ("folder", "gguf"))
def test_experts_that_only_a_number_says_are_no_work(tmp_path, monkeypatch, stored):
    count = 100_000  # names of so many would take tens of megabytes

    def change(config):
        return {**config, "num_experts": count, "num_local_experts": count}

    if stored == "folder":
        path, message = copy_of("qwen3_moe", tmp_path, change), f"has .* tensors, expected {3 * count} of exp"
    else:
        config, tensors = tiny_models.read_folder("qwen3_moe")
        monkeypatch.setattr(tiny_gguf, "read_folder", lambda name: (change(config), tensors))
        path, message = tiny_gguf.write_gguf("qwen3_moe", tmp_path / "model.gguf"), "has shape .*, expected"
    tracemalloc.start()
    try:
        raises(path, message)
        with pytest.raises(ModelFileError, match=message):
            list(info.lines(path))
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_an_expert_that_is_missing_is_missed_at_once(tmp_path):
    name = "model.layers.0.mlp.experts.5.up_proj.weight"
    path = with_tensors(copy_of("qwen3_moe", tmp_path), lambda t: {k: v for k, v in t.items() if k != name})
    raises(path, f"tensor {name} is missing, expected one of ")


def stacks_cut(tensors, part, cut):
    return {name: each[cut] if name.endswith(part) else each for name, each in tensors.items()}


@pytest.mark.parametrize(
    ("part", "cut", "shape", "expected"),
    (
        ("experts.gate_up_proj", np.s_[:2], r"\(2, 32, 64\)", r"\(3, rows, columns\)"),
        ("experts.down_proj", np.s_[:, :31], r"\(32, 31\)", r"\(32, 32\)"),
        ("experts.down_proj_bias", np.s_[:, :, None], r"\(3, 32, 1\)", r"\(3, values\)"),
        ("self_attn.sinks", np.s_[:3], r"\(3,\)", r"\(4,\)"),
        ("mlp.router.bias", np.s_[:2], r"\(2,\)", r"\(3,\)"),
    ),
)
def test_stacks_and_vectors_of_gpt_oss_of_other_sizes(tmp_path, part, cut, shape, expected):
    path = with_tensors(copy_of("gpt_oss", tmp_path), lambda tensors: stacks_cut(tensors, part, cut))
    raises(path, f"tensor model.layers.0.*{part} has shape {shape}, expected {expected}")


@pytest.mark.parametrize("count", (5, 7))
def test_stacks_of_another_number_of_experts(tmp_path, monkeypatch, count):
    config, tensors = tiny_models.read_folder("qwen3_moe")
    few = {k: v for k, v in tensors.items() if not k.startswith("model.layers.1.mlp.experts.5.down")}
    more = {**tensors, "model.layers.1.mlp.experts.6.down_proj.weight": np.zeros((32, 32), np.float32)}
    monkeypatch.setattr(tiny_gguf, "read_folder", lambda name: (config, few if count == 5 else more))
    path = tiny_gguf.write_gguf("qwen3_moe", tmp_path / "model.gguf")
    raises(path, rf"tensor blk.1.ffn_down_exps.weight has shape \({count}, 32, 32\), expected \(6, rows, co")


def test_a_rotation_whose_factors_are_missing(tmp_path, monkeypatch):
    config, tensors = tiny_models.read_folder("phi3_long")
    del config["rope_parameters"]["short_factor"]
    monkeypatch.setattr(tiny_gguf, "read_folder", lambda name: (config, tensors))
    path = tiny_gguf.write_gguf("phi3_long", tmp_path / "model.gguf")
    raises(
        path, "tensor rope_factors_short.weight is missing, expected the factors of phi3.rope.scaling.type"
    )


@pytest.mark.parametrize("stored", ("float", "blocks"))
def test_gguf_files_cut_short(tmp_path, stored):
    """Wherever it is cut: one error that says what the file lacks."""
    whole = tiny_gguf.write_gguf("gemma2", tmp_path / "model.gguf", stored).read_bytes()
    path = tmp_path / "cut.gguf"
    for share in (0.999, 0.9, 0.6):
        path.write_bytes(whole[: int(share * len(whole))])
        raises(path, r"tensor \S+ takes bytes \d+ to \d+, expected an end within the file's \d+ bytes")
    for size in (0, 3, 20, 100, 1000):
        path.write_bytes(whole[:size])
        raises(path, "empty|expected")


# ------------------------------------------------------------------------------------------ what folders hold


def gguf_folder(folder: Path, *names: str) -> Path:
    folder.mkdir()
    made = tiny_gguf.write_gguf("llama3", folder / names[0])
    for name in names[1:]:
        shutil.copy(made, folder / name)
    return folder


@pytest.mark.parametrize("others", ((), ("mmproj-m.gguf", "config.json", "README.md")))
def test_a_folder_with_one_gguf_file_is_that_file(tmp_path, others):
    folder = gguf_folder(tmp_path / "folder", "m.gguf", *others)
    expected = logits_of(folder / "m.gguf", TEXTS[0])
    assert np.array_equal(logits_of(folder, TEXTS[0]), expected)
    assert open_config(folder) == open_config(folder / "m.gguf")
    assert len(open_tokenizer(folder)) == tiny_models.VOCABULARY and open_chat_template(folder) is None


def test_a_folder_with_several_gguf_files_names_them(tmp_path):
    folder = gguf_folder(tmp_path / "folder", "b.gguf", "a.gguf")
    raises(folder, "folder holds the GGUF files a.gguf, b.gguf, expected one, or the path of one of them")


def test_a_folder_with_safetensors_is_read_by_them(tmp_path):
    path = copy_of("llama2", tmp_path)
    expected = logits_of(path, TEXTS[0])
    tiny_gguf.write_gguf("llama3", path / "other.gguf")
    assert np.array_equal(logits_of(path, TEXTS[0]), expected)


def test_shards_cut_short_or_gone(tmp_path):
    shard = copy_of("llama3", tmp_path) / "model-00002-of-00003.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-10])
    raises(shard.parent, r"00002-of-00003.safetensors: tensor \S+ takes bytes \d+ to \d+, expected an end wi")
    shard.write_bytes(whole[:100])
    raises(shard.parent, r"00002-of-00003.safetensors: the header takes \d+ bytes, expected at most 92 in a")
    shard.unlink()
    raises(shard.parent, r"file model-00002-of-00003.safetensors is missing, expected \d+ tensors in it")


def test_paths_that_lead_nowhere(tmp_path):
    with pytest.raises(OSError, match="no such"):
        LayerWiseInferenceEngine(tmp_path / "no such.gguf", backend="python")
    raises(tmp_path, "holds no files, expected model.safetensors or model.safetensors.index.json")
    (copy_of("llama2", tmp_path) / "config.json").unlink()
    with pytest.raises(OSError, match=r"config.json"):
        LayerWiseInferenceEngine(tmp_path / "llama2", backend="python")


def test_a_file_that_is_refused_is_let_go(tmp_path):
    path = copy_of("llama2", tmp_path, lambda config: {**config, "vocab_size": SHORT})
    for _ in range(3):
        raises(path, r"embed_tokens.weight has shape \(80, 32\), expected \(24, 32\)")
    gc.collect()  # errors hold frames, frames hold arrays
    maps = Path("/proc/self/maps")
    assert not maps.exists() or str(path) not in maps.read_text()
