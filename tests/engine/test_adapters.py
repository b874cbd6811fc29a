"""LoRA adapters, against the same model with merged weights in float64."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from airllm.backends import registry
from airllm.cli.chat import slash_commands
from airllm.cli.chat.conversation import Talk
from airllm.cli.commands import main
from airllm.files import ModelFileError
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory.kv_cache_file import CacheFileError
from tests.support.models import tiny_gguf, tokenizer_files
from tests.support.models.lora_files import ALPHA, RANK, low_rank, merged, write_lora, write_peft
from tests.support.models.tiny_models import DATA, read_folder, texts

EXACT = 2e-4  # of the logits' range
BACKENDS = [name for name in ("python", "cpp") if not registry.open_backend(name).why_not]


def logits(engine: LayerWiseInferenceEngine) -> np.ndarray:
    return np.concatenate(engine.forward(texts(), all_positions=True))


def open_model(path: Path, backend: str = "python", **options) -> LayerWiseInferenceEngine:
    return LayerWiseInferenceEngine(path, backend=backend, cache_dtype="f32", **options)


def same(found: np.ndarray, wanted: np.ndarray) -> bool:
    return bool(np.abs(found - wanted).max() < EXACT * np.ptp(wanted))


def logits_of(path: Path, **options) -> np.ndarray:
    with open_model(path, **options) as engine:
        return logits(engine)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("model", ["llama2", "phi3", "qwen3_moe", "gemma3", "mixtral", "nemotron_h_moe"])
def test_a_folder_of_peft(tmp_path, model, backend):
    """Phi-3 has q, k and v in one matrix, Qwen 3 and Mixtral experts."""
    adapter = write_peft(model, tmp_path / "adapter")
    wanted = logits_of(merged(model, tmp_path / "merged", (RANK, ALPHA / RANK)))
    found = logits_of(DATA / model, backend=backend, adapter=adapter)
    assert same(found, wanted)
    assert not same(logits_of(DATA / model), wanted)


@pytest.mark.parametrize("model", ["llama2", "qwen3_moe"])
def test_adapters_and_models_in_either_kind_of_file(tmp_path, model):
    """Llama's GGUF files have other rows in q and k than its folders; those of experts are stacks."""
    wanted = logits_of(merged(model, tmp_path / "merged", (RANK, ALPHA / RANK)))
    whole = tiny_gguf.write_gguf(model, tmp_path / "model.gguf")
    folder = write_peft(model, tmp_path / "adapter")
    assert same(logits_of(whole, adapter=folder), wanted)
    if model == "llama2":
        file = write_lora(model, tmp_path / "adapter.gguf")
        assert same(logits_of(whole, adapter=file), wanted)
        assert same(logits_of(DATA / model, adapter=file), wanted)


def test_several_are_switched_without_opening_again(tmp_path):
    one, two = (
        write_peft("llama2", tmp_path / "one"),
        write_peft("llama2", tmp_path / "two", rank=2, use_rslora=True),
    )
    scale = ALPHA / np.sqrt(2)
    both = logits_of(merged("llama2", tmp_path / "both", (RANK, 0.5 * ALPHA / RANK), (2, -scale)))
    second = logits_of(merged("llama2", tmp_path / "second", (2, scale)))
    plain = logits_of(DATA / "llama2")
    with open_model(DATA / "llama2", adapter=[(one, 0.5), (two, -1.0)]) as engine:
        assert engine.adapters == {"one": 0.5, "two": -1.0}
        assert same(logits(engine), both)
        engine.use_adapters({"two": 1})
        assert same(logits(engine), second)
        engine.use_adapters({})
        assert np.array_equal(logits(engine), plain)
        assert engine.adapters == {"one": 0.0, "two": 0.0}


def test_patterns_of_alpha(tmp_path):
    """PEFT looks alpha up by the end of a module's name."""
    patterns = {"alpha_pattern": {"q_proj": 7.0, r"layers.1.mlp.\w+": 2.0}}
    with open_model(
        DATA / "llama2", adapter=write_peft("llama2", tmp_path / "adapter", **patterns)
    ) as engine:
        pairs = engine._adapters._loaded["adapter"].pairs
    _, tensors = read_folder("llama2")
    for ours, name, alpha in (
        ("layers.0.attention.q", "model.layers.0.self_attn.q_proj.weight", 7.0),
        ("layers.1.feed_forward.up", "model.layers.1.mlp.up_proj.weight", 2.0),
        ("layers.0.feed_forward.up", "model.layers.0.mlp.up_proj.weight", ALPHA),
    ):
        _, b = low_rank(name, tensors[name].shape)
        assert np.allclose(pairs[ours][1], b * alpha / RANK)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_token_after_another_and_batches(tmp_path, backend):
    """A native call would leave the adapter out."""
    adapter = write_peft("llama2", tmp_path / "adapter")
    text = texts()[0]
    with open_model(DATA / "llama2", backend, adapter=adapter) as engine:
        wanted = engine.forward(text, all_positions=True)
        cache = engine.new_cache()
        found = [engine.forward([token], cache) for token in text]
        if backend == "cpp":
            assert engine.model.fused.why_not == "adapters are added op by op"
        assert same(np.stack(found), wanted)
        cache.truncate(10)
        assert same(engine.forward(text[10:12], cache), wanted[11])
        engine.use_adapters({})
        assert not engine.model.fused.why_not or backend == "python"


def test_what_was_kept_is_of_other_adapters(tmp_path):
    adapter, path = write_peft("llama2", tmp_path / "adapter"), tmp_path / "model"
    tokenizer_files.write_tokenizer(shutil.copytree(DATA / "llama2", path), 80)
    prompt = texts()[0][:20]
    with open_model(path, adapter=adapter) as engine:
        wanted = engine.generate(prompt, 8)
    with open_model(path, kv_cache_dir=tmp_path / "caches") as engine:
        assert engine.generate(prompt, 8) != wanted
        engine.forward(prompt, kept := engine.new_cache("kept"))
        del kept
        engine.use_adapters({engine.load_adapter(adapter): 1})
        assert engine.generate(prompt, 8) == wanted
        with pytest.raises(CacheFileError):
            engine.new_cache("kept")
        engine.use_adapters({})
        assert engine.new_cache("kept").tokens == prompt


def test_a_budget(tmp_path):
    """The output matrix is multiplied in parts, and has an adapter too."""
    adapter = write_peft("llama2", tmp_path / "adapter")
    wanted = logits_of(merged("llama2", tmp_path / "merged", (RANK, ALPHA / RANK)), context=80)
    with open_model(DATA / "llama2", adapter=adapter, max_memory="8MB", context=80) as engine:
        assert not engine.model.residency.whole
        assert same(logits(engine), wanted)
        parts = slice(0, 16), slice(16, len(engine.model.output))
        engine.model.residency.output_parts = lambda: iter(parts)
        assert same(logits(engine), wanted)


WRONG = {
    "peft_type has value 'IA3', expected 'LORA'": {"peft_type": "IA3"},
    "use_dora has value True, expected False": {"use_dora": True},
    r"modules_to_save has value \['lm_head'\], expected None": {"modules_to_save": ["lm_head"]},
    "lora_alpha has value '16' for rank 3": {"lora_alpha": "16"},
}


@pytest.mark.parametrize("message", WRONG)
def test_configurations_that_are_not_supported(tmp_path, message):
    adapter = write_peft("llama2", tmp_path / "adapter", **WRONG[message])
    with pytest.raises(ModelFileError, match=f"adapter_config.json: key {message}"):
        open_model(DATA / "llama2", adapter=adapter)


def test_adapters_of_other_models(tmp_path):
    adapter = write_peft("qwen3_moe", tmp_path / "adapter")
    with pytest.raises(ModelFileError, match="module .* is unknown, expected A and B of a matrix"):
        open_model(DATA / "llama2", adapter=adapter)
    other = write_peft("phi3", tmp_path / "other")
    with pytest.raises(ModelFileError, match="is unknown"):
        open_model(DATA / "llama2", adapter=other)
    whole = tiny_gguf.write_gguf("llama2", tmp_path / "model.gguf")
    with pytest.raises(ModelFileError, match="key general.type has value .*, expected 'adapter'"):
        open_model(whole, adapter=write_lora("llama2", tmp_path / "a.gguf", type="model"))
    with pytest.raises(ModelFileError, match="key general.architecture has value 'qwen2', expected 'llama'"):
        open_model(whole, adapter=write_lora("llama2", tmp_path / "b.gguf", architecture="qwen2"))


def test_on_the_command_line_and_in_a_chat(tmp_path, capsys):
    adapter, path = write_peft("llama2", tmp_path / "adapter"), tmp_path / "model"
    tokenizer_files.write_tokenizer(shutil.copytree(DATA / "llama2", path), 80)
    prompt = "$%&'()*+,-./"
    with open_model(path, adapter=(adapter, -2.0)) as engine:
        wanted = engine.generate(prompt, 8)
        plain = Talk(engine, None, {}, quiet=True)
        assert slash_commands.run(plain, "adapter", "adapter=0.5")
        assert engine.adapters == {"adapter": 0.5} and "Adapters: adapter=0.5" in capsys.readouterr().err
        assert slash_commands.run(plain, "adapter", "off")
        assert engine.adapters == {"adapter": 0.0} and engine.generate(prompt, 8) != wanted
        with pytest.raises(ValueError, match="adapter 'adapter' has the scale 'much', expected a number"):
            slash_commands.run(plain, "adapter", "adapter=much")
    command = ["generate", str(path), prompt, "--raw", "-q", "-n", "8", "--backend", "python"]
    assert main([*command, "--cache-dtype", "f32", "--adapter", f"{adapter}:-2"]) == 0
    assert capsys.readouterr().out == f"{wanted}\n"
    assert main([*command, "--adapter", "nowhere:2"]) == 1
    assert "nowhere" in capsys.readouterr().err


def test_names_and_scales(tmp_path):
    adapter = write_peft("llama2", tmp_path / "adapter")
    with open_model(DATA / "llama2", adapter=adapter) as engine:
        with pytest.raises(ValueError, match="has the name 'adapter' twice"):
            engine.load_adapter(adapter)
        with pytest.raises(ValueError, match="has the name 'other', expected of adapter"):
            engine.use_adapters({"other": 1})
        with pytest.raises(ValueError, match="scale of adapter 'adapter' has value nan, expected a finite"):
            engine.use_adapters({"adapter": float("nan")})
        with pytest.raises(ValueError, match="scale of adapter 'adapter' has value 1000"):
            engine.use_adapters({"adapter": 10**400})
        assert engine.adapters == {"adapter": 1.0}
