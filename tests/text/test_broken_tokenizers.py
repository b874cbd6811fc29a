"""Tokenizers of files that are broken, or made to do harm."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models

from airllm.files import ModelFileError
from airllm.text.gguf_tokenizer import gguf_tokenizer
from airllm.text.open_tokenizer import open_tokenizer
from tests.support.models import tokenizer_files

HERE = Path("model.gguf")
PIECES = "sentence pieces"


def change_keys(name: str, **keys) -> dict:
    found = tokenizer_files.metadata(name)
    for key, value in keys.items():
        found[f"tokenizer.ggml.{key}"] = value
        if value is None:
            del found[f"tokenizer.ggml.{key}"]
    return found


@pytest.mark.parametrize(
    ("keys", "message"),
    (
        (
            {"model": "t5"},
            "key tokenizer.ggml.model has value 't5', expected one of bert, gemma4, gpt2, llama",
        ),
        ({"model": "gemma4"}, "key tokenizer.ggml.merges is missing, expected a list"),
        (
            {"model": "gemma4", "merges": ["q zz"], "tokens": ["<0x00>"], "token_type": np.array([6])},
            "tokens lacks <0x01>, .*expected a token for each byte",
        ),
        ({"model": None}, "key tokenizer.ggml.model is missing, expected a str"),
        (
            {"model": "gpt2", "pre": "cyrillic"},
            "key tokenizer.ggml.pre has value 'cyrillic', expected one of de",
        ),
        ({"model": "gpt2"}, "key tokenizer.ggml.merges is missing, expected a list"),
        ({"model": "gpt2", "merges": ["ab"]}, "merges has 'ab' as item 0, expected two pieces"),
        ({"model": "gpt2", "merges": ["q zz"]}, "merges cannot be used .*expected merges of tokens"),
        ({"tokens": 3}, "key tokenizer.ggml.tokens is a int, expected a list"),
        ({"tokens": []}, "key tokenizer.ggml.tokens is empty, expected strings"),
        ({"scores": np.zeros(3)}, "scores has 3 items, expected 9[0-9]+, one for each token"),
        ({"scores": None}, "scores is missing, expected a ndarray"),
        ({"bos_token_id": 1 << 20}, "bos_token_id has value 1048576, expected 0 to 9"),
        ({"eos_token_id": "x"}, "eos_token_id is a str, expected a int"),
        ({"add_bos_token": 1}, "add_bos_token is a int, expected a bool"),
        ({"token_type": np.full(954, 6)}, "tokens has '<unk>' as byte token 0, expected a text like <0x0A>"),
    ),
)
def test_broken_metadata_says_where(keys, message):
    if "token_type" in keys and "tokens" not in keys:
        keys = {"token_type": np.full(len(tokenizer_files.metadata(PIECES)["tokenizer.ggml.tokens"]), 6)}
    with pytest.raises(ModelFileError, match=f"model.gguf: .*{message}"):
        gguf_tokenizer(HERE, change_keys(PIECES, **keys))


@pytest.mark.parametrize(
    ("files", "message"),
    (
        ({"tokenizer.json": "{"}, "tokenizer.json is not JSON"),
        ({"tokenizer.json": "{}"}, "tokenizer.json: the tokenizer cannot be used"),
        (
            {"tokenizer_config.json": '{"bos_token": "nobody"}'},
            "bos_token is 'nobody', expected a token of tok",
        ),
        ({"tokenizer_config.json": '{"eos_token": 7}'}, "tokenizer_config.json: eos_token is 7, expected"),
        (
            {"generation_config.json": '{"eos_token_id": [-1]}'},
            "eos_token_id has -1, expected ids from 0 to 1",
        ),
    ),
)
def test_a_broken_folder_says_where(tmp_path, files, message):
    whole = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    whole.decoder = decoders.ByteLevel()
    whole.save(str(tmp_path / "tokenizer.json"))
    open_tokenizer(tmp_path)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ModelFileError, match=message):
        open_tokenizer(tmp_path)


def bytes_tokenizer(folder: Path, change: Callable[[dict], object]) -> None:
    """A tokenizer.json that says something else after `change`."""
    whole = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")]))
    whole.decoder = decoders.ByteLevel()
    description = json.loads(whole.to_str())
    change(description)
    (folder / "tokenizer.json").write_text(json.dumps(description))


@pytest.mark.parametrize("largest", (100_000, (1 << 32) - 1))
def test_a_large_id_in_a_small_file_takes_no_memory(tmp_path, largest):
    bytes_tokenizer(tmp_path, lambda whole: whole["model"]["vocab"].update(z=largest))
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match=f"has a token with id {largest}, expected at most .* bytes"):
            open_tokenizer(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_a_gap_in_the_ids_is_nothing_wrong(tmp_path):
    bytes_tokenizer(tmp_path, lambda whole: whole["model"]["vocab"].update(z=99))
    tokenizer = open_tokenizer(tmp_path)
    assert len(tokenizer) == 100 and tokenizer.decode(tokenizer.encode("abz")) == "abz"


def test_a_panic_of_the_package_is_an_error_of_the_file(tmp_path):
    """A prefix that is longer than what it is a prefix of: the Rust code slices beyond the text."""
    bytes_tokenizer(tmp_path, lambda whole: whole["model"].update(continuing_subword_prefix="abcdef"))
    with pytest.raises(ModelFileError, match=r"tokenizer.json: the tokenizer cannot be used \(.*range"):
        open_tokenizer(tmp_path)


def test_a_text_that_the_file_makes_impossible_is_an_error_of_the_file(tmp_path):
    def words(whole):
        whole["model"] = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[nothing]"}

    bytes_tokenizer(tmp_path, words)
    tokenizer = open_tokenizer(tmp_path)
    with pytest.raises(ModelFileError, match="tokenizer.json: the tokenizer cannot be used .*Missing"):
        tokenizer.encode("b")


def test_an_interrupt_within_the_package_stays_one(tmp_path, monkeypatch):
    bytes_tokenizer(tmp_path, dict)
    monkeypatch.setattr(tokenizers, "Tokenizer", SimpleNamespace(from_file=interrupted))
    with pytest.raises(KeyboardInterrupt):
        open_tokenizer(tmp_path)


def interrupted(path: str) -> None:
    raise KeyboardInterrupt


def test_a_folder_with_another_decoder_is_refused(tmp_path):
    whole = tokenizers.Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    whole.decoder = decoders.CTC()
    whole.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelFileError, match="decoder is of type CTC, expected ByteLevel, ByteFallback"):
        open_tokenizer(tmp_path)
