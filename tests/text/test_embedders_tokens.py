"""Token ids of the models of embeddings, of whole texts, beside those of the package `tokenizers`: from a
folder, from a GGUF file that `gguf` wrote, and from one that airllm writes.
"""

import unicodedata
from pathlib import Path

import numpy as np
import pytest

from airllm.convert.tokenizer_to_gguf import tokenizer_keys
from airllm.files.gguf_writer import FLOAT32, INT32
from airllm.text.gguf_tokenizer import gguf_tokenizer
from airllm.text.open_tokenizer import open_tokenizer
from airllm.text.vocabulary import SPACE
from tests.support import maker_tokenizers
from tests.support.maker_tokenizers import FAMILIES, ROWS

HERE = Path("model.gguf")
NORMALIZING = ("modern-bert", "qwen3")  # their folders compose letters and marks, which GGUF files cannot say


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    """Its name, its folder and the package's tokenizer of it."""
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, folder, FAMILIES[request.param](folder)


def whole(tokenizer, text):
    closing = [] if tokenizer.closing_id is None else [tokenizer.closing_id]
    return [*tokenizer.encode(text), *closing]


def converted(folder):
    numbers = (*INT32, *FLOAT32)
    keys = tokenizer_keys(folder, ROWS)
    return gguf_tokenizer(
        HERE, {k.name: np.array(k.value) if k.types[-1] in numbers else k.value for k in keys}
    )


def test_ids_of_a_folder(family):
    _, folder, package = family
    tokenizer = open_tokenizer(folder, ROWS)
    for text in maker_tokenizers.texts():
        assert whole(tokenizer, text) == package.encode(text).ids, text


@pytest.mark.parametrize("by", ("gguf", "airllm"))
def test_ids_of_a_gguf_file(by, family, tmp_path):
    """Of texts that are composed, and have no sign that stands for a space in a vocabulary."""
    name, folder, package = family
    if by == "airllm":
        tokenizer = converted(folder)
    else:
        tokenizer = open_tokenizer(maker_tokenizers.write_gguf(name, folder, tmp_path / "model.gguf"))
    for text in maker_tokenizers.texts():
        composed = unicodedata.normalize("NFC", text) if name in NORMALIZING else text
        if name != "gemma-embedding" or SPACE not in text:
            assert whole(tokenizer, composed) == package.encode(text).ids, text
    assert tokenizer.closing_id == open_tokenizer(folder, ROWS).closing_id


def test_texts_are_decoded_as_the_package_does(family):
    name, folder, package = family
    tokenizer = open_tokenizer(folder, ROWS)
    for text in maker_tokenizers.texts():
        ids = package.encode(text, add_special_tokens=False).ids
        pieces = b"".join(tokenizer.piece(token, special=True) for token in ids).decode("utf-8", "replace")
        if name != "nomic-bert":  # the package cleans up spaces around signs
            assert pieces == package.decode(ids, skip_special_tokens=False), text
    assert tokenizer.decode(tokenizer.encode("a  the")) == ("a the" if name == "nomic-bert" else "a  the")


def test_a_token_without_a_row_is_no_token(tmp_path):
    """Folders of Gemma 3's models of text name a token of images."""
    FAMILIES["gemma-embedding"](tmp_path)
    assert len(open_tokenizer(tmp_path)) == ROWS + 1
    tokenizer = open_tokenizer(tmp_path, ROWS)
    assert len(tokenizer) <= ROWS and tokenizer.id_of("<image_soft_token>") is None
    assert tokenizer.decode(tokenizer.encode("a<image_soft_token>")) == "a<image_soft_token>"
    assert max(tokenizer.encode("a<image_soft_token>")) < ROWS
