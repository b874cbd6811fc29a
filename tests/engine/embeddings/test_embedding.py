"""Embeddings: states, pooling and normalization as the files of a model say, from folders and GGUF files."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers.processors import TemplateProcessing

from airllm.architectures.pooling import Pooling, pooling_of
from airllm.cli import commands
from airllm.convert.quantize import quantize
from airllm.engine.embedding import NoEmbeddings, NoGeneration
from airllm.files.open_weights import open_weights
from airllm.files.weight_file import ModelFileError
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory.kv_cache import ContextFull
from tests.support.models import speaking_model, tiny_models
from tests.support.models.tokenizer_files import write_tokenizer

MODES = {"last": "lasttoken", "mean": "mean_tokens", "cls": "cls_token"}


def write_modules(folder, mode="lasttoken", kinds=("Transformer", "Pooling", "Normalize"), **more):
    """The modules of sentence-transformers."""
    modules = [
        {"idx": i, "path": f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {f"pooling_mode_{each}": each == mode for each in MODES.values()} | more
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32} | modes))
    return folder


@pytest.fixture
def embedding_model(tmp_path):
    """A folder whose tokenizer puts a token after a whole text."""
    folder = write_modules(speaking_model.write(tmp_path / "model"))
    tokenizer = speaking_model.tokenizer()
    ids = [(speaking_model.END, tokenizer.token_to_id(speaking_model.END))]
    tokenizer.post_processor = TemplateProcessing(single=f"$A {speaking_model.END}", special_tokens=ids)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("name", ("qwen3", "gemma3", "llama3"))
@pytest.mark.parametrize("kind", MODES)
def test_vectors_are_the_states_that_transformers_multiplies_by_the_output(name, kind, tmp_path):
    """transformers' logits are products of the states with the output: of the vector, if they are linear."""
    folder = shutil.copytree(tiny_models.DATA / name, tmp_path / name)
    write_modules(folder, MODES[kind], ("Transformer", "Pooling"))
    with LayerWiseInferenceEngine(folder, compute="float32", cache_dtype="f32") as engine:
        output = np.asarray(engine.model.output, np.float64)
        vectors = engine.embed_tokens(tiny_models.texts())
    for vector, logits in zip(vectors, tiny_models.reference(name), strict=True):
        row = {"last": logits[-1], "cls": logits[0], "mean": logits.mean(axis=0)}[kind]
        assert np.abs(output @ vector - row).max() <= 2e-4 * np.ptp(row)


def test_a_normalized_vector_has_length_one_and_ends_with_the_closing_token(embedding_model):
    with LayerWiseInferenceEngine(embedding_model) as engine:
        text = "the hen"
        tokens = engine.tokens_to_embed(text)
        assert tokens == [*engine.tokenizer.encode(text), engine.tokenizer.vocabulary.ids[speaking_model.END]]
        states = engine.model.states(tokens, engine.new_cache())
        vector = engine.embed(text)
        assert vector.shape == (speaking_model.WIDTH,) and vector.dtype == np.float32
        np.testing.assert_allclose(vector, states[-1] / np.linalg.norm(states[-1]), atol=1e-6)
        both = engine.embed(["other", text])
        assert np.array_equal(both[1], vector) and both.shape == (2, speaking_model.WIDTH)
        assert engine.embed([]).shape == (0, speaking_model.WIDTH)


def test_a_gguf_file_of_the_folder_gives_the_same_vectors(embedding_model, tmp_path):
    quantize(embedding_model, path := tmp_path / "model.gguf", "f16")
    with LayerWiseInferenceEngine(embedding_model) as folder, LayerWiseInferenceEngine(path) as file:
        assert file.pooling == folder.pooling == Pooling("last")
        np.testing.assert_allclose(file.embed("a text"), folder.embed("a text"), atol=1e-5)


def test_a_long_text_is_computed_in_parts(embedding_model):
    """The states of parts are those of the whole."""
    with LayerWiseInferenceEngine(embedding_model) as engine:
        tokens = list(range(60))
        whole = engine.model.states(tokens, engine.new_cache())
        engine.model.residency.chunk = 7
        np.testing.assert_allclose(engine.model.states(tokens, engine.new_cache()), whole, atol=2e-4)


def test_a_model_that_generates_has_no_embeddings(engine):
    with pytest.raises(NoEmbeddings, match=r"expected pooling_type in a GGUF file, or modules\.json"):
        engine.embed("a text")


def test_a_text_without_tokens(folder, tmp_path):
    model = write_modules(shutil.copytree(folder, tmp_path / "model"))
    with LayerWiseInferenceEngine(model) as engine, pytest.raises(ValueError, match="a text has 0 tokens"):
        engine.embed(["text", ""])


@pytest.mark.parametrize(
    ("given", "told"),
    (
        ({"kinds": ("Transformer", "Pooling", "LSTM")}, r"have sentence_transformers\.models\.LSTM"),
        ({"kinds": ("Normalize", "Pooling", "Transformer")}, "are Normalize, Pooling, Transformer, expected"),
        ({"mode": "none"}, "are none, expected one of pooling_mode_mean_tokens"),
        ({"pooling_mode_max_tokens": True}, "are pooling_mode_lasttoken, pooling_mode_max_tokens"),
    ),
)
def test_modules_that_are_not_computed_are_named(given, told, tmp_path):
    folder = shutil.copytree(tiny_models.DATA / "qwen3", tmp_path / "model")
    write_modules(folder, **given)
    with open_weights(folder) as weights, pytest.raises(ModelFileError, match=told):
        pooling_of(weights)


@pytest.mark.parametrize("text", ("{}", "[1]", '[{"type": "a.Pooling", "path": "../other"}]', "["))
def test_broken_modules(text, tmp_path):
    folder = shutil.copytree(tiny_models.DATA / "qwen3", tmp_path / "model")
    (folder / "modules.json").write_text(text)
    with open_weights(folder) as weights, pytest.raises(ModelFileError, match=r"modules\.json"):
        pooling_of(weights)


@pytest.mark.parametrize("tied", (True, False))
def test_a_folder_as_sentence_transformers_writes_it_has_no_prefix(tied, tmp_path, capsys):
    """Its model is saved alone, without the output."""
    folder = write_modules(shutil.copytree(tiny_models.DATA / "qwen3", tmp_path / "model"))
    write_tokenizer(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": tied}))
    path = folder / "model.safetensors"
    with LayerWiseInferenceEngine(folder) as engine:
        before = engine.embed_tokens([[1, 2, 3]])
    tensors = {name.removeprefix("model."): each for name, each in load_file(path).items()}
    tensors.pop("lm_head.weight", None)
    save_file(tensors, path)
    with LayerWiseInferenceEngine(folder) as engine:
        assert np.array_equal(engine.embed_tokens([[1, 2, 3]]), before) and engine.generates == tied
        if not tied:
            with pytest.raises(NoGeneration, match="has no output matrix: it makes vectors of texts"):
                engine.generate([1, 2])
    assert commands.main(["info", str(folder)]) == 0
    assert ("Generation:  none, there is no output" in capsys.readouterr().out) != tied
    quantize(folder, tmp_path / "model.gguf", "f32")
    with LayerWiseInferenceEngine(tmp_path / "model.gguf") as engine:
        np.testing.assert_allclose(engine.embed_tokens([[1, 2, 3]]), before, atol=1e-5)


def test_a_decoder_without_its_output_and_without_modules_is_refused(tmp_path):
    folder = shutil.copytree(tiny_models.DATA / "qwen3", tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelFileError, match="lm_head.weight is missing"):
        LayerWiseInferenceEngine(folder)


def test_a_text_that_is_too_long_is_an_error_unless_it_may_be_cut(embedding_model):
    with LayerWiseInferenceEngine(embedding_model) as engine:
        text, closing = "the hen sings " * 20, engine.tokenizer.closing_id
        whole = engine.tokens_to_embed(text)
        with pytest.raises(ContextFull, match="expected at most 64"):
            engine.embed(["a", text])
        cut = engine.tokens_to_embed(text, truncate=True)
        assert cut == [*whole[:63], closing] and engine.tokens_to_embed(text, truncate=5) == [
            *whole[:4],
            closing,
        ]
        assert np.array_equal(engine.embed(text, truncate=True), engine.embed_tokens([cut])[0])
        assert np.array_equal(engine.embed("a", truncate=True), engine.embed("a"))
        for wrong in (65, 1, 0, -1):
            with pytest.raises(
                ValueError, match=f"truncate has value {wrong}, expected True, False, or 2 to 64"
            ):
                engine.embed("a", truncate=wrong)


@pytest.mark.parametrize(
    ("files", "longest"),
    (
        ({}, None),
        (
            {
                "sentence_bert_config.json": {"max_seq_length": 9},
                "tokenizer_config.json": {"model_max_length": 20},
            },
            9,
        ),
        ({"sentence_bert_config.json": {"max_seq_length": None}}, None),
        ({"tokenizer_config.json": {"model_max_length": 20}}, 20),
        ({"tokenizer_config.json": {"model_max_length": 10**30}}, None),
        ({"0_Transformer/sentence_bert_config.json": {"max_seq_length": 12}}, 12),
        ({"sentence_bert_config.json": {"max_seq_length": 999}}, 64),
    ),
)
def test_the_files_say_where_a_text_is_cut(files, longest, embedding_model):
    modules = json.loads((embedding_model / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer" if any("/" in name for name in files) else ""
    (embedding_model / "modules.json").write_text(json.dumps(modules))
    for name, content in files.items():
        (embedding_model / name).parent.mkdir(exist_ok=True)
        (embedding_model / name).write_text(json.dumps(content))
    with LayerWiseInferenceEngine(embedding_model) as engine:
        assert len(engine.tokens_to_embed("the hen sings " * 20, truncate=True)) == (
            longest or engine.context
        )


def test_a_length_that_is_none_is_an_error(embedding_model):
    (embedding_model / "0_Transformer").mkdir()
    (embedding_model / "0_Transformer" / "sentence_bert_config.json").write_text('{"max_seq_length": "x"}')
    with (
        LayerWiseInferenceEngine(embedding_model) as engine,
        pytest.raises(ModelFileError, match="max_seq_le"),
    ):
        engine.embed("a")


def test_the_command(embedding_model, capsys, monkeypatch):
    assert commands.main(["embed", str(embedding_model), "a text", "another"]) == 0
    vectors = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    with LayerWiseInferenceEngine(embedding_model) as engine:
        np.testing.assert_allclose(vectors, engine.embed(["a text", "another"]), atol=1e-7)
    monkeypatch.setattr("sys.stdin", iter(["a text\n"]))
    assert commands.main(["embed", str(embedding_model)]) == 0
    assert json.loads(capsys.readouterr().out) == vectors[0]
    long = "the hen " * 50
    assert commands.main(["embed", str(embedding_model), long]) == 1
    assert "expected at most 64, the context; truncate" in capsys.readouterr().err
    assert commands.main(["embed", str(embedding_model), "--truncate", long, "a text"]) == 0
    vectors = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    with LayerWiseInferenceEngine(embedding_model) as engine:
        np.testing.assert_allclose(vectors, engine.embed([long, "a text"], truncate=True), atol=1e-7)
    with pytest.raises(SystemExit):
        commands.main(["embed", str(embedding_model), "--truncate", "a text", "--other"])
    assert "unrecognized arguments: a text --other" in capsys.readouterr().err


def test_info_says_how(embedding_model, folder, capsys):
    assert commands.main(["info", str(embedding_model)]) == 0
    assert "Embeddings:  the last token's state, of length 1" in capsys.readouterr().out
    assert commands.main(["info", str(folder)]) == 0
    assert "Embeddings:" not in capsys.readouterr().out
