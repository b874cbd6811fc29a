"""Logits of the engine against those of Hugging Face transformers, for tiny models of every architecture.

Models and logits: tests/support/models/tiny_models.py. Differences are of the range of the logits.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from airllm.backends import registry
from airllm.engine import opened_model
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory import residency
from airllm.memory.kv_cache import ContextFull
from tests.support.kernels.targets import Target, targets
from tests.support.models import tiny_gguf, tiny_models
from tests.support.models.tiny_models import (
    AS_GGUF,
    DATA,
    FOLDERS,
    K_MODEL,
    LENGTHS,
    SHORT,
    VOCABULARY,
    reference,
)

EXACT = 2e-4
# What fewer bits cost, root mean square: in activations beside stored weights (measured: 0.042), in caches
# (0.0013 and 0.032).
STORED = 0.06
CACHES = {"f16": 2e-3, "q8_0": 0.05}
BACKENDS = [name for name in ("python", "cpp") if not registry.open_backend(name).why_not]
FOLDER, GGUF, BLOCKS, FUSED = "folder", "GGUF", "blocks", "fused"
SOME_FUSED = [FUSED] if "cpp" in BACKENDS else []
CASES = (
    *((name, FOLDER) for name in FOLDERS),
    *((name, GGUF) for name in AS_GGUF),
    *((name, BLOCKS) for name in (*AS_GGUF, K_MODEL)),
)
PIECES = (
    0,
    1,
    2,
    7,
    20,
    21,
    22,
    23,
    24,
    25,
    26,
    40,
)  # where those begin in which a text goes through the layers
NOT_NATIVE = {
    "recurrent=mamba2", "recurrent.norm", "recurrent.norm_first", "recurrent.multipliers", "recurrent.joined",
    "beside", "attended_scale", "gate_scale", "down_scale", "halves", "activation=relu2", "expert_latent",
}  # fmt: skip
WIDE_HEADS = ("llama_linear", "qwen3", "smollm2", "deepseek_v3")  # heads of whole blocks of 32
TEXTS = tiny_models.texts()

Path_of = Callable[[str, str], Path]


@pytest.fixture(scope="session")
def path_of(tmp_path_factory: pytest.TempPathFactory) -> Path_of:
    """Where a tiny model lies; GGUF files are written when first asked for."""
    folder = tmp_path_factory.mktemp("tiny_models")

    def find(name: str, kind: str) -> Path:
        if kind == FOLDER:
            return DATA / name
        path = folder / f"{name}.{kind}.gguf"
        if not path.exists():
            tiny_gguf.write_gguf(name, path, "blocks" if kind == BLOCKS else "float")
        return path

    return find


def open_engine(path: Path, backend: str = "python", **options: Any) -> LayerWiseInferenceEngine:
    """An engine that rounds nothing, unless told otherwise. FUSED: layers by one call where rows are few."""
    if backend == FUSED:
        backend, options = "cpp", {"compute": "stored", **options}
    return LayerWiseInferenceEngine(
        path, backend=backend, **{"compute": "float32", "cache_dtype": "f32", **options}
    )


def expected(name: str, kind: str) -> list[np.ndarray]:
    return reference(name, "blocks" if kind == BLOCKS else "float")


def distance(found: np.ndarray, wanted: np.ndarray) -> float:
    assert found.shape == wanted.shape and found.dtype == np.float32
    return float(np.abs(found - wanted).max() / np.ptp(wanted))


def spread(found: np.ndarray, wanted: np.ndarray) -> float:
    """Root mean square of the differences, of that of the logits, of the middle token: one may well meet
    other experts, and those after it see that.
    """
    return float(np.median(np.linalg.norm(found - wanted, axis=-1) / np.linalg.norm(wanted, axis=-1)))


def growing(logits: list[np.ndarray]) -> np.ndarray:
    """Logits of the first text as it grows: a model that stretches rotations does so beyond SHORT tokens."""
    return np.concatenate([logits[1], logits[0][SHORT:]])


# What files differ in has no part in the ops: the slow backend reads folders only.
KINDS = {"python": (FOLDER,), "cpp": (FOLDER, GGUF, BLOCKS), FUSED: (FOLDER, GGUF)}
RUNS = [(*case, to) for to in (*BACKENDS, *SOME_FUSED) for case in CASES if case[1] in KINDS[to]]
every_run = pytest.mark.parametrize(("name", "kind", "backend"), RUNS, ids=["-".join(run) for run in RUNS])
every_backend = pytest.mark.parametrize("backend", BACKENDS)


@every_run
def test_whole_texts(path_of, name, kind, backend):
    logits = expected(name, kind)
    with open_engine(path_of(name, kind), backend) as engine:
        for text, wanted in zip(TEXTS, logits, strict=True):
            assert distance(engine.forward(text, all_positions=True), wanted) < EXACT
        assert distance(engine.forward(TEXTS[2]), logits[2][-1]) < EXACT


@every_run
def test_with_a_cache(path_of, name, kind, backend):
    """A text in pieces and token by token, over the window's and the rotation's edge, back, and on again."""
    logits = expected(name, kind)
    with open_engine(path_of(name, kind), backend) as engine:
        cache, far = engine.new_cache(), []
        for start, stop in pairwise(PIECES):
            found = engine.forward(TEXTS[0][start:stop], cache, all_positions=True)
            far.append(distance(found, growing(logits)[start:stop]))
        assert max(far) < EXACT
        assert cache.tokens == TEXTS[0] and cache.length == LENGTHS[0]
        cache.truncate(5)
        assert cache.length == (0 if engine.config.recurrent else 5)  # such a state cannot go back
        found = engine.forward(TEXTS[0][cache.length : SHORT], cache, all_positions=True)
        assert distance(found, logits[1][-len(found) :]) < EXACT


@every_run
def test_batches_of_unequal_lengths(path_of, name, kind, backend):
    logits = expected(name, kind)
    with open_engine(path_of(name, kind), backend) as engine:
        for found, wanted in zip(engine.forward(TEXTS, all_positions=True), logits, strict=True):
            assert distance(found, wanted) < EXACT
        caches = [engine.new_cache() for _ in TEXTS]
        engine.forward([TEXTS[0][:30], TEXTS[1][:1], TEXTS[2][:2]], caches)
        found = engine.forward([TEXTS[0][30:], TEXTS[1][1:], TEXTS[2][2:]], caches)
        for row, wanted in zip(found, logits, strict=True):
            assert distance(row, wanted[-1]) < EXACT


@pytest.mark.skipif(not SOME_FUSED, reason="the C++ backend is not built")
@pytest.mark.parametrize("name", FOLDERS)
def test_layers_are_fused(path_of, name):
    """So that the tests above ran what they name."""
    with open_engine(path_of(name, FOLDER), FUSED) as engine:
        unknown = ", ".join(sorted(engine.config.traits() & NOT_NATIVE))
        wanted = f"native layers of cpp do not support {unknown}" if unknown else ""
        assert engine.model.fused.why_not == engine.model.step.why_not == wanted


@pytest.mark.parametrize("name", ("llama3", "phi3_long", "gemma2"))
def test_long_texts_go_through_the_layers_in_rounds(path_of, name, monkeypatch):
    monkeypatch.setattr(residency, "CHUNK", 16)
    logits = expected(name, FOLDER)
    with open_engine(path_of(name, FOLDER)) as engine:
        assert distance(engine.forward(TEXTS[0], all_positions=True), logits[0]) < EXACT
        for found, wanted in zip(engine.forward(TEXTS, all_positions=True), logits, strict=True):
            assert distance(found, wanted) < EXACT


def _one_of_opencl() -> list[Target]:
    """All targets, but of OpenCL the first: compiling takes seconds for each."""
    first = [target for target in targets() if target.backend == "opencl"][:1]
    return [target for target in targets() if target.backend not in ("opencl", "python")] + first


@pytest.mark.parametrize("target", _one_of_opencl(), ids=str)
@pytest.mark.parametrize(("name", "kind"), (("llama3", FOLDER), ("mixtral", BLOCKS)))
def test_every_target(path_of, name, kind, target, reached):
    logits = expected(name, kind)
    with open_engine(path_of(name, kind), target.backend) as engine:
        cache = engine.new_cache()
        assert distance(engine.forward(TEXTS[0][:30], cache), logits[0][29]) < EXACT
        assert distance(engine.forward(TEXTS[0][30:31], cache), logits[0][30]) < EXACT


# ------------------------------------------------------------------------------------------ what is rounded


@pytest.mark.skipif("cpp" not in BACKENDS, reason="the C++ backend is not built")
@pytest.mark.parametrize("name", (*AS_GGUF, K_MODEL))
def test_activations_of_8_bits(path_of, name):
    """1e-4 is the least, or kernels were not reached: the NumPy definition does not round."""
    logits = expected(name, BLOCKS)
    with open_engine(path_of(name, BLOCKS), "cpp", compute="stored") as engine:
        found = engine.forward(TEXTS, all_positions=True)
        assert 1e-4 < spread(np.concatenate(found), np.concatenate(logits)) < STORED
        cache = engine.new_cache()
        one = np.stack([engine.forward([token], cache) for token in TEXTS[1]])
        assert 1e-4 < spread(one, logits[1]) < STORED


@every_backend
@pytest.mark.parametrize("dtype", CACHES)
@pytest.mark.parametrize("name", WIDE_HEADS)
def test_caches_of_fewer_bits(path_of, name, dtype, backend):
    logits = expected(name, FOLDER)
    with open_engine(path_of(name, FOLDER), backend, cache_dtype=dtype) as engine:
        caches = [engine.new_cache() for _ in TEXTS]
        engine.forward([text[:2] for text in TEXTS], caches)
        found = engine.forward([text[2:] for text in TEXTS], caches, all_positions=True)
        far = spread(np.concatenate(found), np.concatenate([wanted[2:] for wanted in logits]))
        assert 1e-6 < far < CACHES[dtype]


# ---------------------------------------------------------------------------------------- these tests see it


@pytest.mark.parametrize(
    ("name", "change"),
    (
        ("llama3", {"rope": {"scaling": None}}),
        ("llama3", {"rope": {"theta": 1e4}}),
        ("llama_linear", {"rope": {"scaling": None}}),
        ("llama_linear", {"qkv_bias": False}),
        ("llama_linear", {"output_bias": False}),
        ("mistral", {"windows": (None,) * 3}),
        ("mistral", {"windows": (9,) * 3}),
        ("qwen2", {"qkv_bias": False}),
        ("qwen2_window", {"windows": (None,) * 3}),
        ("qwen2_window", {"rope": {"scaling": None}}),
        ("qwen3", {"qk_norm": ""}),
        ("qwen3", {"rope": {"scaling": None}}),
        ("gemma2", {"attention_softcap": None}),
        ("gemma2", {"logit_softcap": None}),
        ("gemma2", {"embedding_scale": 1.0}),
        ("gemma2", {"norm_offset": 0.0}),
        ("gemma2", {"post_norms": False}),
        ("gemma2", {"activation": "silu"}),
        ("gemma2", {"windows": (None, 8, None)}),
        ("gemma3", {"attention_scale": 0.125}),
        ("gemma3", {"local_rope": None}),
        ("gemma3", {"rope": {"scaling": None}}),
        ("gemma3", {"qk_norm": ""}),
        ("phi3", {"windows": (None,) * 2}),
        ("phi3_long", {"rope": {"dim": 16, "scaling": None}}),
        ("mixtral", {"experts_used": 1}),
        ("qwen3_moe", {"normalize_experts": False}),
        ("qwen3_moe_some", {"normalize_experts": True}),
        ("smollm2", {"norm_eps": 1e-2}),
    ),
    ids=str,
)
def test_every_setting_shows_in_the_logits(path_of, name, change, monkeypatch):
    """Without one of its parts a model is further off than these tests allow, by far."""
    right = opened_model.config_of

    def wrong(weights):
        config = right(weights)
        rope = {key: replace(config.rope, **value) for key, value in change.items() if key == "rope"}
        return replace(config, **{**change, **rope})

    monkeypatch.setattr(opened_model, "config_of", wrong)
    with open_engine(path_of(name, FOLDER)) as engine:
        assert distance(engine.forward(TEXTS[0]), expected(name, FOLDER)[0][-1]) > 10 * EXACT


# ------------------------------------------------------------------------------------------------ refusals


def test_a_text_longer_than_its_cache(path_of):
    with open_engine(path_of("llama2", FOLDER), context=8) as engine:
        cache = engine.new_cache()
        engine.forward(TEXTS[0][:6], cache)
        with pytest.raises(
            ContextFull, match="has 6 tokens and would get 3 more, 9 in all, expected at most 8"
        ):
            engine.forward(TEXTS[0][6:9], cache)
        assert cache.tokens == TEXTS[0][:6]
        assert distance(engine.forward(TEXTS[0][6:8], cache), expected("llama2", FOLDER)[0][7]) < EXACT


def test_a_long_text_that_does_not_fit_leaves_the_short_one(path_of):
    with open_engine(path_of("phi3_long", FOLDER), context=SHORT + 1) as engine:
        cache = engine.new_cache()
        engine.forward(TEXTS[1], cache)
        with pytest.raises(ContextFull, match=f"would get 2 more, {SHORT + 2} in all"):
            engine.forward([1, 2], cache)
        assert cache.tokens == TEXTS[1]
        assert (
            distance(engine.forward(TEXTS[0][SHORT:][:1], cache), expected("phi3_long", FOLDER)[0][SHORT])
            < EXACT
        )


@every_backend
@pytest.mark.parametrize("token", (-1, VOCABULARY))
def test_a_token_that_the_model_does_not_have(path_of, token, backend):
    with open_engine(path_of("qwen2", FOLDER), backend) as engine:
        cache = engine.new_cache()
        engine.forward(TEXTS[0][:6], cache)
        with pytest.raises((ValueError, IndexError), match=str(token)):
            engine.forward([token], cache)
        assert cache.tokens == TEXTS[0][:6]


def test_a_cache_of_blocks_needs_whole_ones(path_of):
    wanted = "expected f32 or f16 for heads of 16, which is not a multiple of 32"
    with pytest.raises(ValueError, match=wanted):
        open_engine(path_of("llama3", FOLDER), cache_dtype="q8_0")
