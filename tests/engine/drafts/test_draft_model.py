"""A second model that drafts: the text stays the same, whichever model it is; what it needs, and its end."""

from pathlib import Path

import pytest

from airllm.engine.drafts import speculation
from airllm.engine.model import Model
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory.budget import MemoryBudgetError
from tests.support.engines.drafting import GREEDY, Knowing, cpp, open_engine, samplings
from tests.support.models import speaking_model


@cpp
@pytest.mark.parametrize("options", (GREEDY, {"repetition_penalty": 1.3}), ids=("greedy", "penalty"))
def test_a_draft_model_that_is_the_model_is_right(folder, eager, options, monkeypatch):
    monkeypatch.setattr(speculation, "NgramDrafter", Knowing([]))
    with open_engine(folder, speculative=False) as plain:
        expected = plain.generate("the thin man", 45, **options)
    with open_engine(folder, draft_model=folder) as engine:
        assert engine.generate("the thin man", 45, **options) == expected
        done = engine.statistics
        assert done.drafted_tokens > 20
        assert done.accepted_tokens == done.drafted_tokens or options
        assert engine.generate("the thin man", 45, **options) == expected  # from both caches


@cpp
@samplings
def test_a_draft_model_that_is_another_changes_nothing(tmp_path, eager, options, monkeypatch):
    other = speaking_model.write(tmp_path / "other")
    speaking_model.save_file(speaking_model.weights(seed=1), other / "model.safetensors")
    folder = speaking_model.write(tmp_path / "model")
    with open_engine(folder, speculative=False) as plain, open_engine(folder, draft_model=other) as engine:
        for prompt in ("the thin man", "the thin man in a", "he", [65, 66] * 9):
            assert engine.generate(prompt, 40, **options) == plain.generate(prompt, 40, **options)
            assert engine.statistics.drafted_tokens > engine.statistics.accepted_tokens


@cpp
def test_a_draft_model_whose_context_ends_stops_drafting(folder, tmp_path, eager, monkeypatch):
    monkeypatch.setattr(speculation, "NgramDrafter", Knowing([]))
    short = speaking_model.write(tmp_path, max_position_embeddings=24)
    with open_engine(folder, speculative=False) as plain, open_engine(folder, draft_model=short) as engine:
        assert engine.generate("the thin man", 45) == plain.generate("the thin man", 45)
        assert 0 < engine.statistics.accepted_tokens < 24


def test_a_draft_model_with_another_tokenizer_is_refused(folder, gguf_of, tmp_path):
    path = gguf_of("llama3")
    differ = "expected a model with the same tokenizer: 4 of 80 tokens differ .token 76 is b' ', not b'm', "
    with pytest.raises(ValueError, match=f"draft_model has value '{path}', {differ}"):
        LayerWiseInferenceEngine(folder, draft_model=path)
    with pytest.raises(ValueError, match="draft_model has value .*, expected None with speculative=False"):
        LayerWiseInferenceEngine(folder, draft_model=folder, speculative=False)


def test_a_vocabulary_that_is_padded_is_the_same(folder, tmp_path):
    from airllm.engine.drafts.draft_model import shared_vocabulary
    from airllm.text.tokenizer import Tokenizer
    from airllm.text.vocabulary import Vocabulary

    def tokenizer(*texts, letters=True):
        return Tokenizer(Vocabulary(texts, [1] * len(texts), letters), lambda text, _: [])

    def shared(a, b):
        return shared_vocabulary(a, b, Path("small.gguf"))

    one = tokenizer("a", "b", "c")
    assert shared(one, tokenizer("a", "b")) == shared(tokenizer("a", "b"), one) == 2
    assert shared(one, tokenizer("a", "b", "c", letters=False)) == 3
    with pytest.raises(ValueError, match=r"1 of 3 tokens differ \(token 1 is b'x', not b'b'\)"):
        shared(one, tokenizer("a", "x", "c"))


@cpp
def test_a_draft_model_counts_in_the_budget(folder):
    with pytest.raises(MemoryBudgetError, match="expected more than the [0-9]+ of the draft model"):
        open_engine(folder, draft_model=folder, max_memory="1MB")
    with open_engine(folder, draft_model=folder, max_memory="64MB") as engine:
        assert engine.model.residency._budget.limit.nbytes < 60_000_000
        assert engine.generate("the thin man", 9)


def test_a_closed_engine_closes_its_draft_model(folder, monkeypatch):
    closed = []
    close = Model.close
    monkeypatch.setattr(Model, "close", lambda model: closed.append(model) or close(model))
    engine = LayerWiseInferenceEngine(folder, draft_model=folder)
    models = {engine.model, engine._generator.speculation.draft_model.model}
    engine.close()
    assert set(closed) == models and len(models) == 2
    with pytest.raises(MemoryBudgetError):
        LayerWiseInferenceEngine(folder, draft_model=folder, max_memory="9MB")
    assert len(closed) == 3  # also where the engine cannot be opened
