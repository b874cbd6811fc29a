"""Encoders: states are those of transformers, in any company; they say that they do not generate."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from airllm.architectures import open_config
from airllm.cli import commands
from airllm.convert.quantize import quantize
from airllm.engine.devices import backend_choice
from airllm.engine.embedding import NoEmbeddings, NoGeneration
from airllm.engine.encoder import Encoder
from airllm.engine.info import facts
from airllm.engine.layers import encoder
from airllm.engine.profile import profile
from airllm.engine.request import request
from airllm.engine.scheduling.requests import SequenceRequest
from airllm.files.weight_file import ModelFileError
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory.budget import MemoryBudgetError
from airllm.memory.kv_cache import ContextFull
from tests.support.models import encoder_files, minilm, tiny_encoders, tiny_models
from tests.support.models.tiny_encoders import DATA, ENCODERS, reference

TEXTS = tiny_models.texts()


def states(engine, batch):
    return [found for _, found in sorted(Encoder(engine.model).states(batch), key=lambda each: each[0])]


def agree(found, wanted):
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() < 2e-4 * np.ptp(wanted)


@pytest.mark.parametrize("backend", ("cpp", "python"))
@pytest.mark.parametrize("name", ENCODERS)
def test_states_of_folders_are_those_of_transformers(name, backend):
    with LayerWiseInferenceEngine(DATA / name, backend=backend, compute="float32") as engine:
        for found, wanted in zip(states(engine, TEXTS), reference(name), strict=True):
            agree(found, wanted)


def test_nomic_bert_with_its_makers_keys(tmp_path):
    """Those of GPT-2."""
    config, tensors = tiny_encoders.read_folder("nomic_bert")
    save_file(tensors, tmp_path / "model.safetensors")
    keys = {
        "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
        "n_inner": "intermediate_size", "vocab_size": "vocab_size", "layer_norm_epsilon": "layer_norm_eps",
        "max_trained_positions": "max_position_embeddings",
    }  # fmt: skip
    theirs = {new: config[old] for new, old in keys.items()}
    more = {"model_type": "nomic_bert", "rotary_emb_base": 1000, "n_positions": 8192, "qkv_proj_bias": False}
    (tmp_path / "config.json").write_text(json.dumps(theirs | more))
    with LayerWiseInferenceEngine(tmp_path) as engine:
        for found, wanted in zip(states(engine, TEXTS), reference("nomic_bert"), strict=True):
            agree(found, wanted)
    (tmp_path / "config.json").write_text(json.dumps(theirs | more | {"qkv_proj_bias": True}))
    with pytest.raises(ModelFileError, match="qkv_proj_bias is true"):
        open_config(tmp_path)


def test_modernbert_with_older_keys(tmp_path):
    """Those of its makers' folders."""
    folder = shutil.copytree(DATA / "modernbert", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    del config["layer_types"], config["rope_parameters"]
    older = {"global_rope_theta": 1000.0, "local_rope_theta": 100.0, "global_attn_every_n_layers": 3}
    (folder / "config.json").write_text(json.dumps(config | older))
    assert open_config(folder) == open_config(DATA / "modernbert")


@pytest.mark.parametrize("name", ENCODERS)
def test_states_of_gguf_files_are_those_of_transformers(name, tmp_path):
    """Of files with the names of the package gguf, and of those that are made of folders."""
    path = tiny_encoders.write_gguf(name, tmp_path / "model.gguf")
    with LayerWiseInferenceEngine(path) as engine:
        for found, wanted in zip(states(engine, TEXTS), reference(name), strict=True):
            agree(found, wanted)
        assert engine.pooling.kind == "mean"
    quantize(encoder_files.whole_folder(name, tmp_path / "whole"), made := tmp_path / "made.gguf", "f32")
    with LayerWiseInferenceEngine(made) as engine:
        for found, wanted in zip(states(engine, TEXTS), reference(name), strict=True):
            agree(found, wanted)
    assert open_config(made) == open_config(path)


@pytest.mark.parametrize("stored", ("f32", "f16", "q8_0"))
def test_the_vector_of_a_text_does_not_depend_on_its_neighbours(stored, tmp_path):
    """Bit for bit if weights are in 16 bits or blocks. Float32 is multiplied by NumPy's BLAS."""
    path = tmp_path / "model.gguf"
    quantize(encoder_files.whole_folder("bert", tmp_path / "whole"), path, stored)
    random = np.random.default_rng(0)
    batch = [random.integers(0, tiny_encoders.VOCABULARY, n).tolist() for n in (1, 9, 40, 3, 40, 17, 2, 64)]
    with LayerWiseInferenceEngine(path) as engine:
        together = engine.embed_tokens(batch)
        alone = np.concatenate([engine.embed_tokens([each]) for each in batch])
        engine.model.residency.chunk = 50
        parted = engine.embed_tokens(batch[::-1])[::-1]
    for other in (alone, parted):
        if stored == "f32":
            np.testing.assert_allclose(other, together, atol=1e-6)
        else:
            assert np.array_equal(other, together)


def test_a_budget_has_room_for_an_encoder(tmp_path):
    folder = encoder_files.whole_folder("bert", tmp_path / "whole")
    with LayerWiseInferenceEngine(folder) as engine:
        wanted = engine.embed_tokens(TEXTS)
        assert engine.memory_estimate().kv_cache == 0
    with pytest.raises(MemoryBudgetError, match="expected at least") as error:
        LayerWiseInferenceEngine(folder, max_memory="1MB")
    least = int(str(error.value).split("expected at least ")[1].split()[0])
    with LayerWiseInferenceEngine(folder, max_memory=least) as engine:
        np.testing.assert_allclose(engine.embed_tokens(TEXTS), wanted, atol=1e-6)


def test_a_window_is_as_wide_on_both_sides(monkeypatch):
    """Blocks of queries see what one mask shows."""
    with LayerWiseInferenceEngine(DATA / "bert") as engine:
        layer = engine.model.layers[0]
        config = dataclasses.replace(engine.config, windows=(11,) * engine.config.layers)
        layer = dataclasses.replace(layer, config=config)
        random = np.random.default_rng(1)
        q, k, v = random.standard_normal((3, 1, 2, 50, 8)).astype(np.float32)
        monkeypatch.setattr(encoder, "BLOCK", 7)
        encoder._attend(engine.backend, q, k, v, out := np.empty_like(v), layer)
    scores = q.astype(np.float64) @ k.swapaxes(-1, -2) * config.attention_scale
    scores[..., np.abs(np.subtract.outer(range(50), range(50))) > 5] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(out, weights / weights.sum(-1, keepdims=True) @ v, atol=1e-5)


def test_an_encoder_says_that_it_does_not_generate(tmp_path, capsys):
    folder = encoder_files.whole_folder("bert", tmp_path / "whole")
    with LayerWiseInferenceEngine(folder) as engine:
        assert not engine.generates
        calls = (
            lambda: engine.generate("text"), lambda: engine.generate([[1, 2]]), lambda: engine.forward([1]),
            lambda: next(engine.stream("text")), lambda: engine.chat([{"role": "user", "content": "Hi"}]),
            lambda: engine.answer([{"role": "user", "content": "Hi"}]),
            lambda: engine.scheduler().add(SequenceRequest([1, 2], request(4))),
        )  # fmt: skip
        for call in calls:
            with pytest.raises(NoGeneration, match="is an encoder, which makes vectors of texts"):
                call()
        with pytest.raises(ValueError, match="the model is an encoder"):
            profile(engine)
        with pytest.raises(ValueError, match="encoders have none"):
            engine.model.adapt([(None, 1.0)])
    for command in (["generate", str(folder), "text"], ["chat", str(folder)]):
        assert commands.main(command) == 1
        assert "is an encoder" in capsys.readouterr().err
    assert commands.main(["info", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "bert, an encoder, 2 layers" in shown and "Generation:  none" in shown
    assert "Decode:" not in shown and "keys and values in" not in shown
    assert json.loads(json.dumps(facts(folder)))["pooling"]["kind"] == "mean"


def test_automatic_mode_times_a_text_of_an_encoder(monkeypatch, tmp_path):
    """The faster backend is taken; a token of a text is what a second is divided by."""
    monkeypatch.setattr(backend_choice, "cache_file", lambda: tmp_path / "speeds.json")
    monkeypatch.setattr(backend_choice.config_schema, "on_processor", lambda: ("python",))
    monkeypatch.setattr(backend_choice, "_before_host", lambda now: ["cpp"])
    seconds = iter((2.0, 0.5))
    monkeypatch.setattr(backend_choice.speed, "_seconds", lambda call: call() or next(seconds))
    found = backend_choice.choose_backend(backend_choice.Opening(DATA / "bert"))
    assert {name: each.tokens_per_second for name, each in found.speeds.items()} == {"python": 32, "cpp": 128}
    assert found.name == "cpp" and found.why.startswith("the fastest, measured now")


def test_a_text_that_is_too_long_and_one_without_a_pooling(tmp_path):
    folder = encoder_files.whole_folder("bert", tmp_path / "whole")
    told = "a text has 65 tokens, expected at most 64"
    with LayerWiseInferenceEngine(folder) as engine, pytest.raises(ContextFull, match=told):
        engine.embed_tokens([[1] * 65])
    with LayerWiseInferenceEngine(DATA / "bert") as engine, pytest.raises(NoEmbeddings):
        engine.embed_tokens([[1]])


@pytest.mark.parametrize(
    ("changes", "told"),
    (
        ({"position_embedding_type": "relative_key"}, "position_embedding_type has value 'relative_key'"),
        ({"is_decoder": True}, "is_decoder is true"),
        ({"max_position_embeddings": 65}, r"position_embeddings\.weight has shape \(64, 32\)"),
        ({"type_vocab_size": 3}, r"token_type_embeddings\.weight has shape \(2, 32\)"),
        ({"hidden_act": "mish"}, "hidden_act has value 'mish'"),
    ),
)
def test_what_is_not_computed_is_refused(changes, told, tmp_path):
    folder = shutil.copytree(DATA / "bert", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ModelFileError, match=told):
        LayerWiseInferenceEngine(folder)


def test_a_model_with_a_head_has_a_prefix(tmp_path):
    """BertForMaskedLM and the like: what follows the layers is not read."""
    folder = shutil.copytree(DATA / "bert", tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    save_file({f"bert.{name}": each for name, each in tensors.items()}, folder / "model.safetensors")
    with LayerWiseInferenceEngine(folder) as engine:
        agree(states(engine, TEXTS[2:])[0], reference("bert")[2])


# ------------------------------------------------------------------------------------- prompts and matrices


def test_prompts_are_those_of_sentence_transformers(tmp_path):
    folder = encoder_files.whole_folder("bert", tmp_path / "whole")
    prompts = {"query": "q: ", "document": "d: "}
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps({"prompts": prompts, "default_prompt_name": "document"}))
    with LayerWiseInferenceEngine(folder) as engine:
        assert engine.pooling.prompts == prompts
        plain = engine.embed("text", prompt="")
        assert np.array_equal(engine.embed("text", prompt_name="query"), engine.embed("q: text", prompt=""))
        assert np.array_equal(engine.embed("text"), engine.embed("text", prompt="d: "))
        assert not np.array_equal(engine.embed("text"), plain)
        with pytest.raises(
            ValueError, match="prompt_name has value 'other', expected one of query, document"
        ):
            engine.embed("text", prompt_name="other")
        with pytest.raises(ValueError, match="expected None beside a prompt"):
            engine.embed("text", prompt_name="query", prompt="")
    path.write_text(json.dumps({"prompts": prompts, "default_prompt_name": "other"}))
    with (
        LayerWiseInferenceEngine(folder) as engine,
        pytest.raises(ModelFileError, match="default_prompt_name"),
    ):
        engine.embed("text")


@pytest.mark.parametrize("function", ("Identity", "Tanh", "ReLU", "GELU"))
def test_dense_modules_multiply_the_pooled_vector(function, tmp_path):
    folder = encoder_files.whole_folder("bert", tmp_path / "whole")
    with LayerWiseInferenceEngine(folder) as engine:
        pooled = np.stack([each.mean(0) for each in states(engine, TEXTS)]).astype(np.float64)
    random = np.random.default_rng(2)
    matrices = [random.standard_normal(shape).astype(np.float32) for shape in ((48, 32), (8, 48))]
    bias = random.standard_normal(8).astype(np.float32)
    encoder_files.add_dense(folder, matrices[0], None, "Identity")
    encoder_files.add_dense(folder, matrices[1], bias, function)
    wanted = encoder_files.FUNCTIONS[function](pooled @ matrices[0].T @ matrices[1].T + bias)
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    with LayerWiseInferenceEngine(folder) as engine:
        np.testing.assert_allclose(engine.embed_tokens(TEXTS), wanted, atol=1e-5)
        assert engine.embedder.width == 8 and "to 48 values, times a matrix to 8 values" in str(
            engine.pooling
        )


def test_gguf_files_have_the_dense_modules_of_embeddinggemma(tmp_path):
    """And of no other model."""
    random = np.random.default_rng(3)
    matrices = [random.standard_normal(shape).astype(np.float32) for shape in ((64, 32), (32, 64))]
    for name in ("gemma_embedding", "bert"):
        folder = encoder_files.whole_folder(name, tmp_path / name)
        for matrix in matrices:
            encoder_files.add_dense(folder, matrix, None, "Identity")
    quantize(tmp_path / "gemma_embedding", path := tmp_path / "model.gguf", "f32")
    with (
        LayerWiseInferenceEngine(path) as file,
        LayerWiseInferenceEngine(path.with_name("gemma_embedding")) as made,
    ):
        assert [(each.narrow, each.wide) for each in file.pooling.dense] == [(32, 64), (64, 32)]
        np.testing.assert_allclose(file.embed_tokens(TEXTS), made.embed_tokens(TEXTS), atol=1e-6)
    with pytest.raises(ModelFileError, match="the modules Dense are others, expected 2 without bias"):
        quantize(folder, tmp_path / "other.gguf", "f32")


def test_dense_modules_that_do_not_fit(tmp_path):
    folder = encoder_files.whole_folder("bert", tmp_path / "whole")
    encoder_files.add_dense(folder, np.ones((8, 33), np.float32), None, "Identity")
    with LayerWiseInferenceEngine(folder) as engine, pytest.raises(ModelFileError, match="takes 33 values"):
        engine.embed_tokens(TEXTS)
    encoder_files.add_dense(folder, np.ones((8, 8), np.float32), None, "Mish")
    with LayerWiseInferenceEngine(folder) as engine, pytest.raises(ModelFileError, match="is Mish, expected"):
        engine.embed_tokens(TEXTS)


# ------------------------------------------------------------------------------------------- a real model


@pytest.fixture(scope="module")
def real():
    with LayerWiseInferenceEngine(minilm.folder()) as engine:
        yield engine


def test_the_vectors_of_minilm_are_those_of_transformers(real):
    wanted = minilm.vectors()
    found = real.embed_tokens(minilm.ids()[:: minilm.EVERY])
    assert np.abs(found - wanted).max() < 1e-6
    assert real.backend.name() != "cpp" or real.embed("a text").shape == (384,)


def test_close_texts_have_close_vectors(real):
    a, b, c = real.embed(["A cat sits on the mat.", "The cat is sitting on a mat.", "Stocks fell on Monday."])
    assert a @ b > 0.8 and a @ c < 0.2


def test_a_text_is_cut_as_transformers_does(real):
    """By as many tokens as sentence-transformers, if the caller names no number."""
    text = minilm.long_text()
    for (most, ids, vector), truncate in zip(minilm.cut(), (16, True), strict=True):
        assert real.tokens_to_embed(text, truncate=truncate) == ids and len(ids) == most
        assert np.abs(real.embed(text, truncate=truncate) - vector).max() < 1e-6
    assert len(real.tokens_to_embed(text)) > real.context
