"""BERT's tokenizer, from tokenizer.json, from vocab.txt and from GGUF files, beside transformers' ids."""

import json
import shutil

import numpy as np
import pytest

from airllm.convert.tokenizer_to_gguf import tokenizer_keys
from airllm.files.gguf_writer import FLOAT32, INT32
from airllm.files.weight_file import ModelFileError
from airllm.text.folder_tokenizer import folder_tokenizer
from airllm.text.gguf_tokenizer import gguf_tokenizer
from airllm.text.open_tokenizer import open_tokenizer
from tests.support.models import encoder_files, minilm
from tests.support.models.tokenizer_files import hard_texts


def metadata_of(keys):
    """What a reader of a GGUF file with these keys finds."""
    numbers = (*INT32, *FLOAT32)
    return {k.name: np.array(k.value) if k.types[-1] in numbers else k.value for k in keys}


def whole(tokenizer, text):
    return [*tokenizer.encode(text), tokenizer.closing_id]


@pytest.fixture(params=("tokenizer.json", "vocab.txt", "GGUF"))
def real(request, tmp_path):
    """MiniLM's tokenizer, from each kind of file."""
    folder = minilm.folder()
    if request.param == "tokenizer.json":
        return open_tokenizer(folder)
    if request.param == "GGUF":
        return gguf_tokenizer(tmp_path, metadata_of(tokenizer_keys(folder, 30522)))
    for name in ("vocab.txt", "tokenizer_config.json"):
        shutil.copy(folder / name, tmp_path)
    return open_tokenizer(tmp_path)


def test_ids_are_those_of_transformers(real):
    for text, wanted in zip(hard_texts(), minilm.ids(), strict=True):
        assert whole(real, text) == wanted, text


def test_pieces_join_to_words(real):
    assert real.decode(whole(real, "Unaffable embeddings, [MASK]!")) == "unaffable embeddings , !"
    assert real.decode(real.encode("it's")[1:], special=True) == "it ' s"
    assert real.id_of("[CLS]") == real.bos_id == 101 and real.closing_id == 102 and len(real) == 30522


def test_names_of_special_tokens_are_text_unless_they_are_asked_for(real):
    assert real.encode("a [SEP]") == [101, 1037, 102]
    assert real.encode("a [SEP]", special=False) == [101, 1037, 1031, 19802, 1033]


@pytest.fixture
def folder(tmp_path):
    return encoder_files.whole_folder("bert", tmp_path / "model")


def test_a_vocabulary_with_case_keeps_it(folder):
    words = [*(folder / "vocab.txt").read_text().splitlines(), "The", "##S"]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    of_folder = folder_tokenizer(folder)
    of_gguf = gguf_tokenizer(folder, metadata_of(tokenizer_keys(folder, 80)))
    for tokenizer in (of_folder, of_gguf):
        texts = [tokenizer.vocabulary.texts[i] for i in tokenizer.encode("The the henS")[1:]]
        assert texts == ["▁The", "▁the", "▁hen", "S"]


def test_a_vocabulary_without_the_special_tokens(folder):
    (folder / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(ModelFileError, match=r"vocab\.txt.*lacks \[CLS\], \[SEP\], \[UNK\]"):
        folder_tokenizer(folder)


def test_older_files_name_tokens_otherwise(folder):
    """Without the keys of BERT's tokens, they are found by their text."""
    keys = metadata_of(tokenizer_keys(folder, 80))
    less = {k: v for k, v in keys.items() if not k.endswith("_token_id")}
    tokenizers = [gguf_tokenizer(folder, each) for each in (keys, less)]
    for text in ("the hens", "x [MASK] ?", ""):
        assert tokenizers[0].encode(text) == tokenizers[1].encode(text)
        assert tokenizers[1].closing_id == 3


def test_a_tokenizer_that_gguf_files_cannot_say_is_refused(folder):
    """Accents that stay: a reader of the file would strip them."""
    (folder / "tokenizer_config.json").write_text(json.dumps({"strip_accents": False}))
    words = [*(folder / "vocab.txt").read_text().splitlines(), "café"]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    with pytest.raises(ModelFileError, match="other ids in a GGUF file"):
        tokenizer_keys(folder, 80)
