"""What tests of grammars share."""

import pytest


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Of the tiny model that says random bytes."""
    from airllm.text.folder_tokenizer import folder_tokenizer
    from tests.support.models import speaking_model

    return folder_tokenizer(speaking_model.write(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def grammars(tokenizer):
    from airllm.text.grammar import Grammars

    return Grammars(tokenizer)
