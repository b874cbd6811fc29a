"""Memory: what a model needs by estimate and by measurement, and models within a budget."""

import dataclasses
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from airllm.architectures import config_of
from airllm.architectures.layer_spec import Rope
from airllm.architectures.model_config import ModelConfig
from airllm.architectures.tensor_names import NamedTensors
from airllm.backends import (
    BackendPreference,
    estimate_inference_memory,
    init_backend,
    init_backend_with_memory_check,
)
from airllm.files.open_weights import open_weights
from airllm.files.pages import SUPPORTED
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory.budget import MemoryBudgetError
from airllm.memory.estimate import parse_size, weight_bytes
from airllm.memory.kv_cache import Cache, ContextFull
from airllm.memory.kv_cache_file import CacheFileError, FileCache
from tests.support.models import large_model, tiny_models

linux = pytest.mark.skipif(not SUPPORTED, reason="max_memory needs Linux")
PROMPT = np.random.default_rng(4).integers(0, large_model.VOCABULARY, 40).tolist()

# Run in a process of its own: what opening the model and computing with it takes at most, and the logits.
MEASURE = """
import json, sys
import numpy as np
from airllm import tensor_ops
from airllm.layer_engine import LayerWiseInferenceEngine

def status(key):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(key))

path, prompt, options = json.loads(sys.argv[1])
tensor_ops.linear(np.ones((2, 64), np.float32), np.ones((64, 64), np.float32))  # threads and their stacks
open("/proc/self/clear_refs", "w").write("5")  # the peak begins here
before = status("VmRSS")
with LayerWiseInferenceEngine(path, **options) as engine:
    cache = engine.new_cache()
    logits = [engine.forward(prompt, cache)]
    for token in range(4):
        logits.append(engine.forward([int(logits[-1].argmax())], cache))
peak = status("VmHWM") - before
np.save(sys.argv[2], logits)
print(json.dumps({"peak": peak}))
"""


def measure_run(path: Path, out: Path, **options) -> tuple[int, np.ndarray]:
    arguments = [json.dumps([str(path), PROMPT, options]), str(out)]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"AIRLLM_CPU_INTERLEAVE": "0"},  # copies are not made within a budget
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["peak"], np.load(out)


@pytest.fixture(scope="module", params=("folder", "gguf", "parts"))
def model(request, tmp_path_factory) -> Path:
    return getattr(large_model, f"write_{request.param}")(tmp_path_factory.mktemp("large") / "model")


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path]))


@linux
def test_a_model_of_four_times_the_budget(model, tmp_path):
    budget = size_of(model) // 4
    peak, logits = measure_run(model, tmp_path / "a.npy", max_memory=budget)
    assert peak < budget
    whole, expected = measure_run(model, tmp_path / "b.npy")
    assert whole > 3 * peak  # the measurement measures
    assert np.array_equal(logits.argmax(axis=-1), expected.argmax(axis=-1))
    assert np.abs(logits - expected).max() <= 1e-5 * np.ptp(expected)


def smallest_budget(model: Path, context: int) -> int:
    with pytest.raises(
        MemoryBudgetError, match=r"max_memory is 1000000 bytes, expected at least \d"
    ) as error:
        LayerWiseInferenceEngine(model, max_memory="1MB", context=context)
    return int(str(error.value).split("at least ")[1].split()[0])


@linux
def test_the_smallest_budget_is_named_and_works(model, tmp_path):
    smallest = smallest_budget(model, 64)
    with pytest.raises(MemoryBudgetError, match=f"at least {smallest}"):
        LayerWiseInferenceEngine(model, max_memory=smallest - 1, context=64)
    assert smallest < size_of(model) // 4
    peak, _ = measure_run(model, tmp_path / "a.npy", max_memory=smallest, context=64)
    assert peak < smallest


def fill_cache(engine: LayerWiseInferenceEngine, tokens: int) -> Cache:
    """A cache that counts as having so many tokens."""
    cache = engine.new_cache()
    cache.extend([1] * tokens)
    return cache


@linux
def test_when_caches_grow_layers_give_way(model):
    with LayerWiseInferenceEngine(model, max_memory=size_of(model) // 3) as engine:
        cache = engine.new_cache()
        engine.forward([1], cache)
        before = engine.model.residency.stays
        others = [fill_cache(engine, large_model.CONTEXT - 1) for _ in range(2)]
        engine.forward([[1], [2]], others)
        assert engine.model.residency.stays < before
        others.clear()
        engine.forward([1], cache)
        assert engine.model.residency.stays == before


@linux
def test_caches_that_the_budget_has_no_room_for(model):
    with LayerWiseInferenceEngine(model, max_memory=smallest_budget(model, 256), context=256) as engine:
        cache = fill_cache(engine, 254)
        engine.forward([1], cache)
        other = fill_cache(engine, 254)
        with pytest.raises(MemoryBudgetError, match="with caches of .* drop caches"):
            engine.forward([1], other)
        assert other.length == 254  # nothing was half done
        del other
        engine.forward([1], cache)


@linux
def test_the_context_is_what_the_budget_has_room_for(model):
    for parts, context in ((4, None), (2, None), (4, 300)):
        with LayerWiseInferenceEngine(model, max_memory=size_of(model) // parts, context=context) as engine:
            assert engine.context == (context or large_model.CONTEXT)


@linux
def test_a_file_that_was_cut_short_is_an_error(tmp_path):
    path = large_model.write_gguf(tmp_path / "model.gguf")
    with LayerWiseInferenceEngine(path, max_memory="64MB") as engine:
        with path.open("r+b") as file:
            file.truncate(size_of(path) // 2)
        with pytest.raises(ValueError, match="bytes now, expected .* as when it was opened"):
            engine.forward([1])


def test_sizes():
    sizes = {"512MB": 512 * 10**6, "1.5GiB": 3 << 29, " 2 kb ": 2000, "7": 7, 12: 12, "0.5 TiB": 1 << 39}
    assert {size: parse_size(size) for size in sizes} == sizes
    for wrong in ("", "MB", "-1MB", "1 XB", "1e9", 0, "0.1B"):
        with pytest.raises(ValueError, match="max_memory has value .*expected"):
            parse_size(wrong)
    for wrong in (1.5, True, None):
        with pytest.raises(TypeError, match="max_memory has type"):
            parse_size(wrong)


def test_the_estimate_for_a_large_model():
    estimate = estimate_inference_memory(4096, 14336, 32, 32000, 32, 8, 4096, 4)
    assert estimate.total_bytes == 30_040_932_352
    assert f"Model requires: {estimate.total_gb():.2f} GB" == "Model requires: 27.98 GB"
    assert (estimate.weights, estimate.kv_cache, estimate.activations) == (28_966_928_384, 1 << 30, 1 << 18)
    with pytest.raises(ValueError, match="n_layers is 0, expected at least 1"):
        estimate_inference_memory(4096, 14336, 0, 32000, 32, 8, 4096, 4)
    with pytest.raises(ValueError, match="n_heads=3"):
        estimate_inference_memory(4096, 14336, 1, 32000, 3, 1, 4096, 4)


def test_a_backend_with_the_memory_for_it():
    assert init_backend_with_memory_check("auto", 1).name() == init_backend("auto").name()
    with pytest.raises(MemoryError, match=f"free on .*, expected {1 << 60}"):
        init_backend_with_memory_check(BackendPreference.Cpu, 1 << 60)


@linux
def test_the_estimate_is_what_is_measured(model, tmp_path):
    with LayerWiseInferenceEngine(model, context=64) as engine:
        estimate = engine.memory_estimate(tokens=len(PROMPT))
    peak, _ = measure_run(model, tmp_path / "a.npy", context=64)
    assert 0.9 * peak < estimate.total_bytes < 1.15 * peak


@pytest.mark.parametrize("name", ("gpt_oss", "qwen3_moe"))
def test_a_tensor_that_is_gate_and_up_is_counted_once(name):
    _, tensors = tiny_models.read_folder(name)
    with open_weights(tiny_models.DATA / name) as weights:
        nbytes = weight_bytes(NamedTensors(weights, config_of(weights)))
    assert nbytes == sum(2 * each.size for each in tensors.values())  # of bfloat16


# ------------------------------------------------------------------------------------------ keys and values


@pytest.mark.parametrize("dtype", ("f32", "f16", "q8_0"))
def test_a_cache_takes_what_is_put_in(dtype):
    config = tiny_config()
    cache, other = Cache(config, 10, dtype), Cache(config, 10, dtype)
    new = (
        np.random.default_rng(1).standard_normal((2, 7, config.kv_heads, config.head_dim)).astype(np.float32)
    )
    for layer in range(config.layers):
        other.append(layer, *new)  # all at once
    for token in range(7):
        for layer in range(config.layers):
            cache.append(layer, *new[:, token : token + 1])
        cache.extend([token])
    both = other.read(config.layers - 1, 7)
    assert np.array_equal(cache.read(config.layers - 1, 7), both)
    most = {"f32": 0, "f16": 1e-3, "q8_0": 1.5e-2}[dtype] * np.abs(new).max()
    assert np.abs(both - new.swapaxes(1, 2)).max() <= most
    cache.truncate(3)
    assert cache.tokens == [0, 1, 2] and cache.read(0, 4)[0].shape == (config.kv_heads, 4, config.head_dim)
    with pytest.raises(ContextFull, match="has 3 tokens and would get 8 more, 11 in all"):
        cache.room_for(8)


def tiny_config() -> ModelConfig:
    rope = Rope(10000.0, 32)
    return ModelConfig("llama", 2, 64, 2, 2, 32, 64, 100, 64, rope, 1e-5, "silu", 0.2, (None, None))


def test_a_sequence_in_a_file_goes_on(model, tmp_path):
    options = {"kv_cache_dir": tmp_path / "kv", "context": 64, "backend": "auto"}
    with LayerWiseInferenceEngine(model, **options) as engine:
        expected = engine.forward(PROMPT[:20])
        cache = engine.new_cache("talk")
        engine.forward(PROMPT[:10], cache)
        with pytest.raises(CacheFileError, match="talk.kv is in use"):
            engine.new_cache("talk")
    del cache
    with LayerWiseInferenceEngine(model, **options) as engine:
        cache = engine.new_cache("talk")
        assert cache.tokens == PROMPT[:10]
        found = engine.forward(PROMPT[10:20], cache)
        assert np.abs(found - expected).max() < 1e-2 * np.ptp(expected)
        cache.truncate(4)
        del cache
        assert engine.new_cache("talk").tokens == PROMPT[:4]
        assert [file.name for file in (tmp_path / "kv").iterdir()] == ["talk.kv"]  # unnamed ones are gone
        for name in ("../talk", "ta\0lk", ".talk", ""):
            with pytest.raises(ValueError, match="expected a file's name"):
                engine.new_cache(name)
    with (
        LayerWiseInferenceEngine(model, **options | {"context": 65}) as engine,
        pytest.raises(CacheFileError, match='belongs to .*"capacity": 64.* expected .*"capacity": 65'),
    ):
        engine.new_cache("talk")
    with LayerWiseInferenceEngine(model) as engine, pytest.raises(ValueError, match="without kv_cache_dir"):
        engine.new_cache("talk")


@pytest.mark.parametrize("backend", ("auto", "python"))
def test_a_file_has_the_tokens_of_every_kind_of_pass(tmp_path, backend):
    """Alone, several at once, several sequences together, after a truncation, after opening again."""
    text = tiny_models.texts()[0]
    options = {"kv_cache_dir": tmp_path, "context": 64, "cache_dtype": "f32", "backend": backend}
    with LayerWiseInferenceEngine(tiny_models.DATA / "llama3", **options) as engine:
        a, b = engine.new_cache("a"), engine.new_cache("b")
        for part in ([0], [1], [2, 3], [4], [5]):
            engine.forward([text[i] for i in part], a)
        for part in ([0, 1], [2], [3]):
            engine.forward([text[i] for i in part], b)
        engine.forward([text[6:7], text[4:6]], [a, b])
        a.truncate(5)
        engine.forward(text[5:6], a)
        del a, b
        for name, length in (("a", 6), ("b", 6)):
            cache = engine.new_cache(name)
            assert cache.tokens == text[:length]
            engine.forward(text[length : length + 1], cache)
            del cache
            cache = engine.new_cache(name)
            assert cache.tokens == text[: length + 1]
            found, expected = engine.forward(text[7:9], cache), engine.forward(text[:9])
            assert np.abs(found - expected).max() < 1e-4 * np.ptp(expected)
            del cache


@pytest.mark.parametrize(
    ("options", "message"),
    (
        *(({"context": n}, "context has value .*, expected a whole number from 1 to 16777216")
          for n in (0, -1, 2**60, 1.5, True, "x")),
        ({"compute": "x"}, "compute has value 'x', expected one of stored, float32"),
        ({"cache_dtype": "x"}, "cache_dtype has value 'x', expected one of f32, f16, q8_0"),
        ({"max_memory": "9" * 400 + "GB"}, "max_memory has value '9.*, expected a number and B, KB"),
    ),
)  # fmt: skip
def test_options_of_the_engine_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        LayerWiseInferenceEngine(tiny_models.DATA / "llama3", backend="python", **options)


def test_a_process_that_ends_anywhere_leaves_whole_tokens(tmp_path):
    cache = FileCache(tiny_config(), 10, "f16", tmp_path, "a", "me")
    new = np.ones((2, 1, 2, 32), np.float32)
    for layer in range(2):
        cache.append(layer, *new)
    cache.extend([7])
    cache.append(0, *new)  # and no more
    del cache
    assert FileCache(tiny_config(), 10, "f16", tmp_path, "a", "me").tokens == [7]


def overwrite(path: Path, at: int, to: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(to)


@pytest.mark.parametrize(
    ("damage", "message"),
    (
        (lambda path: overwrite(path, 0, b"something"), "begins with b'somethin', expected b'airllmKV'"),
        (lambda path: overwrite(path, 8, b"\7"), "has version 7, expected 3"),
        (lambda path: overwrite(path, 16, b"\xff"), "has 255 tokens, expected at most 10"),
        (lambda path: overwrite(path, 4096, b"\xff" * 4), "has tokens from -1 to -1, expected 0 to 99"),
        (lambda path: overwrite(path, 33, b"\1"), "lacks the first 256 of 1 tokens, expected fewer"),
        (lambda path: overwrite(path, 56, b"?"), "belongs to .*expected"),
        (lambda path: os.truncate(path, 5000), "has 5000 bytes, expected"),
        (lambda path: os.truncate(path, 7), "begins with"),
        (lambda path: os.truncate(path, 12), "has 12 bytes, expected"),
    ),
)
def test_broken_files_of_caches(tmp_path, damage, message):
    cache = FileCache(tiny_config(), 10, "f16", tmp_path, "a", "me")
    cache.extend([7])
    del cache
    damage(tmp_path / "a.kv")
    for _ in range(2):  # a refused file is let go of, and not changed
        with pytest.raises(CacheFileError, match=message):
            FileCache(tiny_config(), 10, "f16", tmp_path, "a", "me")
    (tmp_path / "a.kv").unlink()
    assert FileCache(tiny_config(), 10, "f16", tmp_path, "a", "another").tokens == []
    with pytest.raises(CacheFileError, match='"model": "another".*expected .*"model": "me"'):
        FileCache(tiny_config(), 10, "f16", tmp_path, "a", "me")


def without_fallocate(number: int):
    def posix_fallocate(file: int, offset: int, nbytes: int) -> None:
        raise OSError(number, os.strerror(number))

    return posix_fallocate


@pytest.mark.parametrize("name", ("a", None))
@pytest.mark.parametrize("fallocate", (True, False))
def test_all_of_a_cache_has_room_on_the_disk(tmp_path, monkeypatch, fallocate, name):
    """A page of the map without would end the process when the disk is full."""
    if not fallocate:
        monkeypatch.setattr(os, "posix_fallocate", without_fallocate(errno.EOPNOTSUPP), raising=False)
    cache = FileCache(tiny_config(), 3000, "f16", tmp_path, name, "me")
    os.fsync(cache._file.fileno())  # some file systems count their blocks only then
    there = os.fstat(cache._file.fileno())
    assert there.st_blocks * 512 >= there.st_size > cache.layout.nbytes > 1 << 20


def test_a_cache_that_the_disk_has_no_room_for(tmp_path, monkeypatch):
    with monkeypatch.context() as full:
        full.setattr(os, "posix_fallocate", without_fallocate(errno.ENOSPC), raising=False)
        for name in ("a", None):
            with pytest.raises(OSError, match=r"No space left on device, for a cache of \d+ bytes") as error:
                FileCache(tiny_config(), 10, "f16", tmp_path, name, "me")
            assert error.value.errno == errno.ENOSPC and error.value.filename.endswith(".kv")
            assert not list(tmp_path.iterdir())
    assert FileCache(tiny_config(), 10, "f16", tmp_path, "a", "me").tokens == []


def test_a_file_whose_making_was_cut_off_is_made_again(tmp_path):
    (tmp_path / "a.kv").write_bytes(bytes(5000))
    cache = FileCache(tiny_config(), 10, "f16", tmp_path, "a", "me")
    cache.extend([7])
    del cache
    assert FileCache(tiny_config(), 10, "f16", tmp_path, "a", "me").tokens == [7]


# -------------------------------------------------------------------------------------------------- experts


@linux
@pytest.mark.parametrize("name", ("mixtral", "qwen3_moe_some", "nemotron_h_moe"))
def test_only_the_experts_that_a_token_uses_are_read_and_they_are_let_go(name, monkeypatch):
    options = {"backend": "python", "compute": "float32", "cache_dtype": "f32", "context": 64}
    prompt = tiny_models.texts()[0][:20]
    with LayerWiseInferenceEngine(tiny_models.DATA / name, **options) as engine:
        expected = engine.forward(prompt)
    with LayerWiseInferenceEngine(tiny_models.DATA / name, max_memory="1GB", **options) as engine:
        residency, config = engine.model.residency, engine.config
        assert np.array_equal(engine.forward(prompt), expected)
        every = {(i, n) for i in range(config.layers) if config.is_moe(i) for n in range(config.experts)}
        engine.forward(prompt[:1])
        assert 0 < len(residency.used_experts) <= len(every)
        # room for one more than a token uses in a layer
        room = residency.expert_bytes * (config.experts_used + 1)
        plan = engine.model.residency._budget.plan
        tight = lambda *asked: dataclasses.replace(plan(*asked), experts=room)  # noqa: E731
        monkeypatch.setattr(residency._budget, "plan", tight)
        gone = []
        monkeypatch.setattr("airllm.memory.residency.release", gone.append)
        assert np.array_equal(engine.forward(prompt), expected)
        assert len(residency.used_experts) == config.experts_used + 1
        assert len(gone) > len(every)
