"""Tokens whose launches were recorded: where they are, and that their logits are those of the definition."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from airllm.backends import registry
from airllm.backends.device.faults import LOST, DeviceFault
from airllm.backends.device.recording import Pass, Result, record
from airllm.backends.gpu.launches import FEWEST_KEYS, Launch
from tests.support.engines import device_models
from tests.support.engines.device_models import agree, counts, open_engine, running
from tests.support.models import tiny_gguf, tiny_models, wide_gguf
from tests.support.models.tiny_models import DATA, reference, texts

TEXT = texts()[1]
COMPARED = 3
placed, kernels_of_gpus = device_models.placed, device_models.kernels_of_gpus


class Counted:
    """The tokens of a text through an engine, one by one, and how many of them were replayed."""

    def __init__(self, engine: Any, backend: str):
        self._engine, self._backend, self.replayed = engine, backend, 0

    def logits(self, tokens: list[int], cache: Any) -> np.ndarray:
        """Logits (tokens, vocabulary)."""
        found = []
        for token in tokens:
            start = counts(self._backend)
            found.append(self._engine.forward([token], cache))
            self.replayed += (counts(self._backend) - start).replayed > 0
        return np.stack(found)


def has_command_buffers() -> bool:
    """Whether the OpenCL device in use has them."""
    place = registry.open_backend("opencl").module.device_ops().place
    return command_buffers().functions_of(place.engine.program.device) is not None


def command_buffers() -> Any:
    return pytest.importorskip("tensor_ops_opencl.command_buffers")


@pytest.mark.parametrize("name", ("llama3", "gemma4", "qwen3_moe", "deepseek_v3"))
def test_from_the_fourth_token_on_launches_are_those_of_the_third(name, placed):
    """As many launches, of which each token hands over one lot; no memory is taken; ids and angles go up."""
    with open_engine(DATA / name, placed) as engine:
        engine.forward(TEXT[:-6], cache := engine.new_cache())
        spent = []
        for token, wanted in zip(TEXT[-6:], reference(name)[1][-6:], strict=True):
            start = counts(placed)
            agree(engine.forward([token], cache), wanted)
            spent.append(counts(placed) - start)
    assert [each.replayed > 0 for each in spent] == [False] * COMPARED + [True] * 3
    for each in spent[COMPARED:]:
        assert each.replayed == each.launches == spent[0].launches
        assert each.waits == 1 and each.resident == 0 and each.uploaded <= spent[0].uploaded
        if placed != "opencl":
            assert each.submits == 1
        else:  # a command buffer, the write to the cache, and attention; or each launch
            layers = engine.config.layers
            assert each.submits <= (3 * layers + 3 if has_command_buffers() else each.launches)


@pytest.mark.parametrize("name", ("falcon_h1", "qwen3_5", "lfm2"))
def test_recurrent_states_take_turns(name, placed):
    """A token reads what the one before has written, and writes to another place, of three if one is kept."""
    with open_engine(DATA / name, placed) as engine:
        tokens, wanted = Counted(engine, placed), reference(name)[1]
        agree(tokens.logits(TEXT, cache := engine.new_cache()), wanted)
        assert tokens.replayed >= COMPARED
        engine.forward(TEXT[:-8], other := engine.new_cache())
        other.mark()
        agree(tokens.logits(TEXT[-8:], other), wanted[-8:])
        other.truncate(len(TEXT) - 8)
        agree(tokens.logits(TEXT[-8:], other), wanted[-8:])
    del cache


def test_more_keys_are_recorded_anew(placed, request, tmp_path):
    """GPUs divide more keys among more work-groups. The text goes over two such ends."""
    if placed == "opencl":
        request.getfixturevalue("kernels_of_gpus")
    path = wide_gguf.write_wide("llama3", tmp_path / "blocks.gguf")
    text = np.random.default_rng(6).integers(8, tiny_models.VOCABULARY, 2 * FEWEST_KEYS + 8).tolist()
    with open_engine(path, placed) as engine, open_engine(path, "cpp", False, compute="float32") as host:
        wanted = host.forward(text, all_positions=True)
        for end in (FEWEST_KEYS, 2 * FEWEST_KEYS):
            tokens = Counted(engine, placed)
            engine.forward(text[: end - 6], cache := engine.new_cache())
            agree(tokens.logits(text[end - 6 : end + 6], cache), wanted[end - 6 : end + 6])
            assert tokens.replayed == 12 - 2 * COMPARED
        cache.truncate(end - 3)  # replayed again, from there on
        tokens = Counted(engine, placed)
        agree(tokens.logits(text[end - 3 : end + 6], cache), wanted[end - 3 : end + 6])
        assert tokens.replayed == 9 - 2 * COMPARED


@pytest.mark.parametrize("name", ("gemma3", "llama4_chunks", "ministral3", "mistral_small4"))
def test_windows_chunks_and_temperatures(name, placed):
    """Layers lack tokens, see those of a chunk, scale queries by steps: each is another recording."""
    with open_engine(DATA / name, placed) as engine:
        agree(Counted(engine, placed).logits(TEXT, engine.new_cache()), reference(name)[1])


@pytest.mark.parametrize("cache_dtype", ("f16", "q8_0"))
def test_caches_of_other_dtypes(cache_dtype, placed, tmp_path):
    path = wide_gguf.write_wide("llama3", tmp_path / "blocks.gguf")
    options = {"cache_dtype": cache_dtype}
    with open_engine(path, placed, **options) as engine, open_engine(path, "python", False) as host:
        tokens, wanted = Counted(engine, placed), host.forward(TEXT, all_positions=True)
        agree(tokens.logits(TEXT, engine.new_cache()), wanted, within=0.02)
        assert tokens.replayed >= len(TEXT) - COMPARED - 1


def test_sequences_beside_each_other(placed):
    """By turns, in a batch, as a copy, after going back: what is recorded is of one sequence's memory."""
    with open_engine(DATA / "llama3", placed) as engine:
        tokens, wanted = Counted(engine, placed), reference("llama3")[1]
        one, other = engine.new_cache(), engine.new_cache()
        for token, logits in zip(TEXT, wanted, strict=True):
            agree(tokens.logits([token], one)[0], logits)
            agree(tokens.logits([token], other)[0], logits)
        assert not tokens.replayed
        one.truncate(len(TEXT) - 6)
        agree(tokens.logits(TEXT[-6:], one), wanted[-6:])
        assert tokens.replayed == 6 - COMPARED
        one.truncate(len(TEXT) - 6)
        agree(tokens.logits(TEXT[-6:-3], one), wanted[-6:-3])
        assert tokens.replayed == 9 - COMPARED
        other.truncate(len(TEXT) - 3)
        batch = engine.forward([TEXT[-3:-2], TEXT[-3:-2]], [one, other])
        agree(np.stack(batch), np.stack([wanted[-3]] * 2))
        agree(tokens.logits(TEXT[-2:], one), wanted[-2:])
        copied = engine.new_cache()
        copied.copy_prefix(one, len(TEXT) - 5)
        agree(tokens.logits(TEXT[-5:], copied), wanted[-5:])


def test_a_sequence_that_ends_and_a_model_that_closes_leave_nothing(placed):
    before = counts(placed)
    with open_engine(DATA / "llama3", placed) as engine:
        held = (counts(placed) - before).resident
        tokens = Counted(engine, placed)
        tokens.logits(TEXT[:6], cache := engine.new_cache())
        assert tokens.replayed and (counts(placed) - before).resident > held
        del cache
        assert (counts(placed) - before).resident == held
        tokens.logits(TEXT[:6], cache := engine.new_cache())
    del engine, tokens, cache
    assert (counts(placed) - before).resident == 0


def test_no_more_memory_is_taken_than_allowed(placed):
    """Where the arrays of a token cannot stay, nothing is recorded."""
    with open_engine(DATA / "llama3", placed) as engine:
        arena = engine.model.on_device.device.arena
        tokens = Counted(engine, placed)
        tokens.logits(TEXT[:2], cache := engine.new_cache())
        arena.limit = arena.peak
        agree(tokens.logits(TEXT[2:], cache), reference("llama3")[1][2:])
        assert not tokens.replayed and arena.peak <= arena.limit


def test_layers_that_pass_through_the_device_are_not_recorded(placed):
    for form in ("stream", "split"):
        with open_engine(DATA / "llama3", placed, gpu_layers=1, offload=form) as engine:
            tokens = Counted(engine, placed)
            agree(tokens.logits(TEXT, engine.new_cache()), reference("llama3")[1])
            assert not tokens.replayed


def test_a_fault_of_a_replay_is_one_of_its_device(placed, monkeypatch):
    """And another backend goes on with all tokens."""
    with open_engine(DATA / "llama3", placed, fallback_backends=["python"]) as engine:
        tokens, wanted = Counted(engine, placed), reference("llama3")[1]
        tokens.logits(TEXT[:6], cache := engine.new_cache())
        place = engine.model.on_device.device.place
        failed = place.fault(RuntimeError("no fault of a driver"))
        monkeypatch.setattr(place, "fault", lambda error: LOST)

        def fail(*given: Any) -> None:
            raise RuntimeError("the device is gone")

        monkeypatch.setattr(place, "upload", fail)
        with pytest.warns(match="was lost"):
            agree(engine.forward(TEXT[6:7], cache), wanted[6])
        assert not failed and engine.model.on_device is None
        agree(np.stack([engine.forward([token], cache) for token in TEXT[7:]]), wanted[7:])


@pytest.mark.parametrize("call, replayed", (
    ("clCreateCommandBufferKHR", True), ("clCommandNDRangeKernelKHR", True),
    ("clFinalizeCommandBufferKHR", True), ("clEnqueueCommandBufferKHR", False),
))  # fmt: skip
def test_command_buffers_that_a_driver_does_not_take(call, replayed, monkeypatch):
    """Launches are started one by one; a buffer that it took before and does not start is a fault."""
    running("opencl")
    if not has_command_buffers():
        pytest.skip("the OpenCL device has no command buffers")
    real = command_buffers().functions_of

    def fail(*given: Any) -> Any:
        if call == "clCreateCommandBufferKHR":
            given[-1]._obj.value = -36
            return None
        return -36

    monkeypatch.setattr("tensor_ops_opencl.place.functions_of", lambda device: real(device) | {call: fail})
    with open_engine(DATA / "llama3", "opencl") as engine:
        tokens, cache = Counted(engine, "opencl"), engine.new_cache()
        tokens.logits(TEXT[:COMPARED], cache)
        if replayed:
            agree(tokens.logits(TEXT[COMPARED:], cache), reference("llama3")[1][COMPARED:])
            assert tokens.replayed
        else:
            with pytest.raises(DeviceFault, match="was lost"):
                tokens.logits(TEXT[COMPARED:], cache)


def test_gemma_4_in_blocks(placed, tmp_path):
    """Inputs of layers go up as well."""
    path = tiny_gguf.write_gguf("gemma4", tmp_path / "gemma4.gguf", "blocks")
    with open_engine(path, placed) as engine:
        tokens = Counted(engine, placed)
        agree(tokens.logits(TEXT, engine.new_cache()), reference("gemma4", "blocks")[1])
        assert tokens.replayed >= len(TEXT) - COMPARED - 1  # the first token may differ


# ---- what can be recorded


class FakePlace:
    """Records nothing but what it was given."""

    def record(self, launches: Any) -> Any:
        self.launches = launches
        return SimpleNamespace(run=lambda tokens: None)


def a_pass(position: int, number: Any, uploaded: int = 1, kernel: str = "kernel") -> Pass:
    noted = Pass(position, holds=True)
    buffer = SimpleNamespace(buffer=object(), nbytes=4)
    noted.makes(buffer)
    noted.uploaded(buffer.buffer, np.array([uploaded]))
    noted.launched([Launch("family", kernel, ("x", number), 1)], {"x": (buffer.buffer, 0, 4)})
    noted.downloaded(Result(buffer.buffer, 0, (1,), np.dtype(np.float32)))
    return noted


@pytest.mark.parametrize("numbers, step", (
    ((np.uint64(5), np.uint64(5), np.uint64(5)), None),
    ((np.uint64(5), np.uint64(9), np.uint64(13)), 4),
    ((np.uint32(9), np.uint32(7), np.uint32(5)), -2),
))  # fmt: skip
def test_numbers_that_grow_evenly_are_recorded(numbers, step):
    place = FakePlace()
    passes = [a_pass(10 + i, number) for i, number in enumerate(numbers)]
    assert record(place, passes, [np.array([1])])
    (launch,) = place.launches
    assert launch.steps == ({} if step is None else {1: step})
    if step is not None:
        assert launch.numbers(2) == {1: numbers[2] + np.int64(2 * step)}
        assert type(launch.numbers(2)[1]) is type(numbers[0])


@pytest.mark.parametrize("passes", (
    [a_pass(i, np.uint64(n)) for i, n in enumerate((5, 6, 8))],
    [a_pass(i, np.float32(n)) for i, n in enumerate((1, 2, 3))],
    [a_pass(i, np.uint64(n)) for i, n in ((3, 1), (5, 2), (7, 3))],
    [a_pass(3, np.uint64(n)) for n in (1, 2, 3)],
    [a_pass(i, np.uint64(1), kernel=name) for i, name in enumerate("aab")],
    [a_pass(i, np.uint64(1), uploaded=i) for i in range(3)],
), ids=("unevenly", "floats", "parts of a step", "no token between", "kernels", "other uploads"))  # fmt: skip
def test_passes_that_differ_in_more_are_not_recorded(passes):
    assert record(FakePlace(), passes, [np.array([1])]) is None


def test_memory_of_others_must_be_the_same():
    passes = [a_pass(i, np.uint64(1)) for i in range(3)]
    passes[1].launched([Launch("family", "kernel", ("y",), 1)], {"y": (object(), 0, 4)})
    passes[2].launched([Launch("family", "kernel", ("y",), 1)], {"y": (object(), 0, 4)})
    assert record(FakePlace(), passes, [np.array([1])]) is None


def test_a_fault_while_recording_ends_it(placed):
    with open_engine(DATA / "llama3", placed) as engine:
        ops = engine.model.on_device.device
        with pytest.raises(DeviceFault), engine.model.on_device.faults(), ops.noting(Pass(0, True)):
            raise DeviceFault(LOST, "a device", "gone")
        agree(engine.forward(TEXT), reference("llama3")[1][-1])
