"""Models with a recurrent state: where a sequence can go back to, and what needs that."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from airllm.engine.layers import state_space
from airllm.engine.layers.delta_rule import scan
from airllm.engine.layers.recurrent import convolve
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory import residency
from tests.support.models import tiny_gguf
from tests.support.models.tiny_models import DATA, VOCABULARY, read_folder, reference, texts

NAMES = ("lfm2", "qwen3_5", "granite_hybrid", "falcon_h1", "nemotron_h_moe")
TEXT = np.random.default_rng(4).integers(0, VOCABULARY - 1, 128).tolist()


@pytest.fixture(scope="module", params=NAMES)
def path(request, tmp_path_factory):
    return tiny_gguf.write_gguf(request.param, tmp_path_factory.mktemp("recurrent") / "model.gguf")


def test_a_prompt_of_several_passes_has_the_bits_of_one(path, monkeypatch):
    """Passes end where chunks do."""
    found = []
    for most in (512, 24):
        monkeypatch.setattr(residency, "CHUNK", most)
        with open_engine(path) as engine:
            found.append(engine.forward(TEXT[:41], all_positions=True))
    np.testing.assert_array_equal(*found)


def open_engine(path, **options):
    return LayerWiseInferenceEngine(path, backend="cpp", cache_dtype="f32", **options)


def test_a_convolution_goes_on_where_it_stopped():
    rng = np.random.default_rng(1)
    x, taps = rng.standard_normal((9, 5)), rng.standard_normal((5, 4))
    padded = np.concatenate([np.zeros((3, 5)), x])
    wanted = [[padded[t : t + 4, c] @ taps[c] for c in range(5)] for t in range(9)]
    state, found = np.zeros((3, 5)), np.empty((9, 5))
    for start, stop in ((0, 1), (1, 3), (3, 9)):
        following = np.empty_like(state)
        convolve(x[start:stop], taps, state, following, found[start:stop])
        state = following
    np.testing.assert_allclose(found, wanted, atol=1e-12)
    np.testing.assert_array_equal(state, x[-3:])


@pytest.mark.parametrize("start", (None, 0, 3))
def test_chunks_of_the_delta_rule_are_its_tokens(start):
    """In float64: token by token, as it is defined, whatever pieces a text comes in."""
    rng = np.random.default_rng(2)
    tokens, heads, key, value = 41, 3, 8, 5
    q, k = rng.standard_normal((2, tokens, heads, key))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    v = rng.standard_normal((tokens, heads, value))
    log_decay, beta = -rng.exponential(size=(tokens, heads)), rng.random((tokens, heads))
    first = rng.standard_normal((heads, key, value))
    state, wanted = first.copy(), []
    for t in range(tokens):
        state = np.exp(log_decay[t])[:, None, None] * state
        missed = v[t] - np.einsum("hkv,hk->hv", state, k[t])
        state = state + np.einsum("hk,hv->hkv", k[t], beta[t][:, None] * missed)
        wanted.append(np.einsum("hkv,hk->hv", state, q[t]))
    found, last = [], first
    for at in (slice(0, 7), slice(7, 33), slice(33, 41)):
        following = np.empty_like(last)
        arrays = (each[at] for each in (q, k, v, log_decay, beta))
        found.append(scan(*arrays, last, following, None if start is None else start + at.start))
        last = following
    np.testing.assert_allclose(np.concatenate(found), wanted, atol=1e-12)
    np.testing.assert_allclose(last, state, atol=1e-12)


@pytest.mark.parametrize("start", (None, 0, 3))
def test_chunks_of_a_state_space_are_its_tokens(start):
    """In float64: token by token, as it is defined, whatever pieces a text comes in."""
    rng = np.random.default_rng(3)
    tokens, heads, groups, wide, value = 41, 6, 2, 8, 5
    writes, reads = rng.standard_normal((2, tokens, groups, wide))
    v, log_decay = rng.standard_normal((tokens, heads, value)), -rng.exponential(size=(tokens, heads))
    first = rng.standard_normal((heads, wide, value))
    state, wanted = first.copy(), []
    for t in range(tokens):
        of_head = [each[t].repeat(heads // groups, axis=0) for each in (writes, reads)]
        state = np.exp(log_decay[t])[:, None, None] * state + np.einsum("hn,hv->hnv", of_head[0], v[t])
        wanted.append(np.einsum("hnv,hn->hv", state, of_head[1]))
    found, last = [], first
    for at in (slice(0, 7), slice(7, 33), slice(33, 41)):
        following = np.empty_like(last)
        arrays = (each[at] for each in (writes, reads, v, log_decay))
        begin = None if start is None else start + at.start
        found.append(state_space.scan(*arrays, last, following, begin))
        last = following
    np.testing.assert_allclose(np.concatenate(found), wanted, atol=1e-12)
    np.testing.assert_allclose(last, state, atol=1e-12)


def test_a_sequence_goes_back_to_the_last_place_that_its_prompt_kept(path):
    with open_engine(path) as engine:
        cache, other = engine.new_cache(), engine.new_cache()
        wanted = engine.forward(TEXT, other, all_positions=True)
        found = engine.forward(TEXT[:100], cache)
        assert (cache.length, cache.marked) == (100, 64)
        near = {"atol": 2e-4 * np.ptp(wanted)}
        np.testing.assert_allclose(found, wanted[99], **near)
        for _ in range(2):
            cache.truncate(90)
            assert cache.length == 64
            np.testing.assert_allclose(engine.forward(TEXT[64:], cache), wanted[-1], **near)
        cache.truncate(63)
        assert cache.length == 0


def test_a_chat_computes_only_what_follows_the_kept_place(path):
    with open_engine(path) as engine:
        first = engine.generate(TEXT[:100], max_new_tokens=6)
        assert engine.generate(TEXT[:100], max_new_tokens=6) == first
        assert engine.statistics.cached_tokens == 64
        with open_engine(path) as another:
            wanted = another.generate([*TEXT[:70], *TEXT[:9]], max_new_tokens=6)
        assert engine.generate([*TEXT[:70], *TEXT[:9]], max_new_tokens=6) == wanted
        assert engine.statistics.cached_tokens == 64


def test_a_sequence_in_a_file_goes_back_after_it_is_opened_again(path, tmp_path):
    with open_engine(path, kv_cache_dir=tmp_path) as engine:
        cache = engine.new_cache("talk")
        wanted = engine.forward(TEXT[:80], cache)
        engine.forward(TEXT[80:90], cache)
        del cache
        cache = engine.new_cache("talk")
        assert (cache.length, cache.marked) == (90, 64)
        cache.truncate(80)
        np.testing.assert_allclose(engine.forward(TEXT[64:80], cache), wanted, atol=1e-4)


def test_experts_may_be_stacks(tmp_path):
    """As the makers of Qwen 3.5 store them; transformers writes them one by one."""
    config, tensors = read_folder("qwen3_5_moe")
    stacks, experts = {}, range(config["num_experts"])
    for layer in range(config["num_hidden_layers"]):
        before = f"model.layers.{layer}.mlp.experts"
        each = [[tensors.pop(f"{before}.{i}.{part}_proj.weight") for part in ("gate", "up")] for i in experts]
        stacks[f"{before}.gate_up_proj"] = np.stack([np.concatenate(pair) for pair in each])
        stacks[f"{before}.down_proj"] = np.stack(
            [tensors.pop(f"{before}.{i}.down_proj.weight") for i in experts]
        )
    save_file(tensors | stacks, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with open_engine(tmp_path) as engine:
        for text, wanted in zip(texts(), reference("qwen3_5_moe"), strict=True):
            found = engine.forward(text, all_positions=True)
            assert np.abs(found - wanted).max() < 2e-4 * np.ptp(wanted)


@pytest.mark.parametrize("stored", ("float", "blocks"))
def test_the_first_files_of_qwen3_next_have_its_inputs_as_one_matrix(stored, tmp_path):
    """In the order of folders: queries, keys, values and gates of each key head."""
    path = tiny_gguf.write_gguf("qwen3_next", tmp_path / "first.gguf", stored, joined=True)
    text, wanted = texts()[1], reference("qwen3_next", stored)[1]
    with open_engine(path, compute="float32") as engine:
        assert engine.config.recurrent.joined
        found = engine.forward(text[:20], cache := engine.new_cache(), all_positions=True)
        steps = [engine.forward([token], cache) for token in text[20:]]
    assert np.abs(np.concatenate([found, steps]) - wanted).max() < 2e-4 * np.ptp(wanted)


def test_drafts_are_refused(path):
    message = "needs models with attention alone, but [\\w-]+ keeps a recurrent state"
    with pytest.raises(ValueError, match=f"^speculative {message}"):
        open_engine(path, speculative=True)
    with pytest.raises(ValueError, match=f"^draft_model {message}"):
        open_engine(DATA / "llama3", draft_model=path)
    with open_engine(path) as engine:
        assert engine.model.most_drafted(engine.new_cache()) == 0
