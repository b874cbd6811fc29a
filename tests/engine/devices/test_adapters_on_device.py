"""Adapters of models on a device: logits are those of merged weights, and their matrices go there once."""

import re

import numpy as np
import pytest

from airllm.backends.device.faults import LOST, MEMORY, DeviceFault
from airllm.engine.adapters.adapter import Adapter, open_adapter
from airllm.engine.devices.fallback import BackendFallback
from airllm.engine.devices.placed_adapters import placed_bytes
from airllm.files import pages
from airllm.memory.budget import MemoryBudgetError
from airllm.memory.layers import Experts
from tests.support.engines import device_models
from tests.support.engines.device_models import agree, counts, open_engine, running
from tests.support.models.lora_files import ALPHA, RANK, merged, write_peft
from tests.support.models.tiny_models import DATA, texts

KIB = 1024
TEXTS = texts()
backend, placed = device_models.backend, device_models.placed


def logits_of(engine) -> list[np.ndarray]:
    """Of a prompt, and token by token after it; of sequences together."""
    engine.forward(TEXTS[1][:-3], cache := engine.new_cache())
    steps = [engine.forward([token], cache) for token in TEXTS[1][-3:]]
    return [np.stack(steps), *engine.forward(TEXTS, all_positions=True)]


def wanted_of(model: str, path, *adapters: tuple[int, float]) -> list[np.ndarray]:
    with open_engine(merged(model, path, *adapters), "python", False) as engine:
        return logits_of(engine)


def agree_with(engine, wanted: list[np.ndarray]) -> None:
    for found, logits in zip(logits_of(engine), wanted, strict=True):
        agree(found, logits)


@pytest.mark.parametrize(
    "model",
    (
        "llama2",
        "phi3",
        "gemma3",
        "qwen3_moe",
        "mixtral",
        "qwen2_moe",
        "llama4",
        "lfm2",
        "qwen3_5",
        "falcon_h1",
    ),
)
def test_logits_are_those_of_merged_weights(model, backend, tmp_path):
    """Queries, keys and values, gate and up in one piece of memory; all experts, and a shared one."""
    adapter = write_peft(model, tmp_path / "adapter")
    wanted = wanted_of(model, tmp_path / "merged", (RANK, ALPHA / RANK))
    with open_engine(DATA / model, backend, adapter=adapter) as engine:
        agree_with(engine, wanted)
    with open_engine(DATA / model, backend) as engine, pytest.raises(AssertionError):
        agree_with(engine, wanted)


@pytest.mark.parametrize("model", ("llama4", "gpt_oss", "gemma4_moe", "qwen2_moe"))
def test_adapters_of_some_experts(model, backend, tmp_path):
    """Of ranks of their own, where inputs of experts are scaled, have biases, or another norm. The processor
    adds them expert by expert.
    """
    rng, pairs = np.random.default_rng(4), {}
    with open_engine(DATA / model, "python", False) as host:
        layers = [layer for layer in host.model.layers if layer.experts]
        for number, part, rank in ((0, "gate", 2), (1, "gate", 3), (1, "down", 1), (2, "up", 2)):
            name = f"layers.{layers[-1].index}.experts.{number}.{part}"
            outputs, inputs = layers[-1].experts.look_up(number)[part].shape
            shapes = (rank, inputs), (outputs, rank)
            pairs[name] = tuple(rng.standard_normal(shape, np.float32) / 8 for shape in shapes)
        plain = host.forward(TEXTS[1], all_positions=True)
        host.model.adapt([(Adapter(tmp_path, pairs), 2.0)])
        wanted = host.forward(TEXTS[1], all_positions=True)
    assert np.abs(wanted - plain).max() > 1e-2 * np.ptp(plain)
    with open_engine(DATA / model, backend) as engine:
        engine.model.adapt([(Adapter(tmp_path, pairs), 2.0)])
        engine.forward(TEXTS[1][:-3], cache := engine.new_cache())
        agree(np.stack([engine.forward([token], cache) for token in TEXTS[1][-3:]]), wanted[-3:])
        agree(engine.forward(TEXTS[1], all_positions=True), wanted)


@pytest.mark.parametrize("parts", (("q_b",), ("kv_a",), ("q_a", "output")))
def test_adapters_of_latent_attention(parts, backend, tmp_path):
    """Of a product that makes queries, which is then a launch of its own, and of others."""
    rng, pairs = np.random.default_rng(4), {}
    with open_engine(DATA / "deepseek_v3", "python", False) as host:
        for layer in host.model.layers:
            for part in parts:
                outputs, inputs = layer[f"attention.{part}"].shape
                shapes = (RANK, inputs), (outputs, RANK)
                name = f"layers.{layer.index}.attention.{part}"
                pairs[name] = tuple(rng.standard_normal(shape, np.float32) / 8 for shape in shapes)
        host.model.adapt([(Adapter(tmp_path, pairs), 2.0)])
        wanted = host.forward(TEXTS[1], all_positions=True)
    with open_engine(DATA / "deepseek_v3", backend) as engine:
        engine.model.adapt([(Adapter(tmp_path, pairs), 2.0)])
        engine.forward(TEXTS[1][:-3], cache := engine.new_cache())
        agree(np.stack([engine.forward([token], cache) for token in TEXTS[1][-3:]]), wanted[-3:])
        agree(engine.forward(TEXTS[1], all_positions=True), wanted)


def test_adapters_of_experts_in_several_formats(backend, tmp_path, monkeypatch):
    """Expert 1 of each layer has its matrices in float16, so each kind is two arrays."""
    plain = Experts.look_up

    def look_up(self, number):
        found = plain(self, number)
        return {part: each.astype(np.float16) for part, each in found.items()} if number == 1 else found

    adapter = write_peft("mixtral", tmp_path / "adapter")
    wanted = wanted_of("mixtral", tmp_path / "merged", (RANK, ALPHA / RANK))
    monkeypatch.setattr(Experts, "look_up", look_up)
    with open_engine(DATA / "mixtral", backend, adapter=adapter) as engine:
        assert "experts.gate_up.1" in engine.model.on_device.layers[0].enter().weights
        for found, logits in zip(logits_of(engine), wanted, strict=True):
            assert np.abs(found - logits).max() <= 2e-3 * np.ptp(logits)  # rounding to float16


def test_adapters_are_switched_and_only_they_are_uploaded(backend, tmp_path):
    one, two = (write_peft("llama2", tmp_path / name, rank) for name, rank in (("one", RANK), ("two", 2)))
    both = wanted_of("llama2", tmp_path / "both", (RANK, 0.5 * ALPHA / RANK), (2, -ALPHA / 2))
    second = wanted_of("llama2", tmp_path / "second", (2, ALPHA / 2))
    with open_engine(DATA / "llama2", backend) as engine:
        plain, before = logits_of(engine), counts(backend)
        names = [engine.load_adapter(path) for path in (one, two)]
        for scales, wanted in (({"one": 0.5, "two": -1.0}, both), ({"two": 1.0}, second), ({}, plain)):
            start = counts(backend)
            engine.use_adapters(scales)
            spent = counts(backend) - start
            assert spent.uploaded == placed_bytes(engine.model._pairs, 0) and spent.downloaded == 0
            assert (counts(backend) - before).resident == spent.uploaded
            agree_with(engine, wanted)
        assert names == ["one", "two"]


def test_what_crosses_the_bus_per_token(backend, tmp_path):
    for model in ("llama2", "mixtral"):
        adapter = write_peft(model, tmp_path / model)
        start = counts(backend)
        with open_engine(DATA / model, backend, adapter=adapter) as engine:
            weights, pairs = (
                engine.model.weight_bytes,
                placed_bytes(engine.model._pairs, engine.config.experts),
            )
            assert weights + pairs <= (counts(backend) - start).uploaded <= weights + pairs + 16 * KIB
            engine.forward(TEXTS[1][:-2], cache := engine.new_cache())
            for token in TEXTS[1][-2:]:
                start = counts(backend)
                logits = engine.forward([token], cache)
                spent = counts(backend) - start
                assert spent.uploaded <= 16 * KIB and spent.downloaded == logits.nbytes and spent.waits == 1


@pytest.mark.parametrize("form", ("split", "stream"))
def test_models_larger_than_the_device(form, placed, tmp_path):
    """Some layers in host memory, or passing through the device, with their adapters."""
    for model in ("llama2", "mixtral"):
        adapter = write_peft(model, tmp_path / model)
        wanted = wanted_of(model, tmp_path / f"{model} merged", (RANK, ALPHA / RANK))
        options = {"gpu_layers": 1, "offload": form, "adapter": adapter, "compute": "float32"}
        with open_engine(DATA / model, placed, **options) as engine:
            assert engine.model.on_device.plan.stays == 1
            agree_with(engine, wanted)


def test_a_plan_has_room_for_adapters(placed, tmp_path):
    """Adapters that do not fit beside the layers push layers out; without room for that they are refused, and
    the model goes on as before.
    """
    adapter = write_peft("gemma3", tmp_path / "adapter")
    wanted = wanted_of("gemma3", tmp_path / "merged", (RANK, ALPHA / RANK))
    with open_engine(DATA / "gemma3", placed) as engine:
        room = engine.model.on_device.plan.nbytes
    with open_engine(DATA / "gemma3", placed, device_memory=room, offload="stream") as engine:
        stays = engine.model.on_device.plan.stays
        engine.use_adapters({engine.load_adapter(adapter): 1.0})
        plan, arena = engine.model.on_device.plan, engine.model.on_device.device.arena
        assert plan.stays < stays and plan.nbytes <= room
        agree(engine.forward(TEXTS[1], all_positions=True), wanted[2])
        assert arena.peak <= room
    with pytest.raises(MemoryBudgetError) as error:
        open_engine(DATA / "gemma3", placed, device_memory=1, offload="stream")
    room = int(re.search(r"at least (\d+)", str(error.value))[1])
    with open_engine(DATA / "gemma3", placed, device_memory=room, offload="stream") as engine:
        plain = engine.forward(TEXTS[1], all_positions=True)
        engine.forward(TEXTS[1][:-2], cache := engine.new_cache())
        with pytest.raises(MemoryBudgetError):
            engine.model.adapt([(open_adapter(adapter, engine.model.tensors), 1.0)])
        agree(engine.forward(TEXTS[1][-2:], cache), plain[-1])


def test_adapters_that_the_driver_has_no_memory_for(placed, tmp_path):
    """Those from before are in use again, or another backend goes on with the new ones."""
    one, two = (write_peft("llama2", tmp_path / name, rank) for name, rank in (("one", RANK), ("two", 2)))
    wanted = {rank: wanted_of("llama2", tmp_path / f"{rank}", (rank, ALPHA / rank))[2] for rank in (RANK, 2)}
    for others in ((), ("python",)):
        with open_engine(DATA / "llama2", placed, adapter=one, fallback_backends=others) as engine:
            engine.load_adapter(two)
            fill_up(engine.model.on_device.device)
            with pytest.warns(BackendFallback) if others else pytest.raises(DeviceFault):
                engine.use_adapters({"two": 1.0})
            assert bool(engine.model.on_device) != bool(others)
            agree(engine.forward(TEXTS[1], all_positions=True), wanted[2 if others else RANK])


def fill_up(device) -> None:
    """Let a device take five arrays more."""
    real, left = device.to_device, iter(range(5))

    def to_device(array):
        if next(left, None) is None:
            raise DeviceFault(MEMORY, "a device", "as a test says")
        return real(array)

    device.to_device = to_device


def test_within_a_budget_of_the_host(placed, tmp_path):
    """Layers pass through host memory; adapters stay on the device."""
    if not pages.SUPPORTED:
        pytest.skip("this system has no budgets")
    adapter = write_peft("mixtral", tmp_path / "adapter")
    wanted = wanted_of("mixtral", tmp_path / "merged", (RANK, ALPHA / RANK))
    with open_engine(DATA / "mixtral", placed, adapter=adapter, max_memory="16MB", context=80) as engine:
        assert engine.model.residency.limit.nbytes == 16_000_000
        agree_with(engine, wanted)


def test_a_backend_that_goes_on_has_the_adapters(tmp_path):
    running("opencl")
    adapter = write_peft("llama2", tmp_path / "adapter")
    wanted = wanted_of("llama2", tmp_path / "merged", (RANK, ALPHA / RANK))
    with open_engine(DATA / "llama2", "opencl", adapter=adapter, fallback_backends=["python"]) as engine:
        engine.forward(TEXTS[1][:-3], cache := engine.new_cache())
        place, fault = engine.model.on_device.device.place, DeviceFault(LOST, "a device", "as a test says")
        place.run = lambda *given: (_ for _ in ()).throw(fault)
        with pytest.warns(BackendFallback):
            found = [engine.forward([token], cache) for token in TEXTS[1][-3:]]
        assert engine.model.on_device is None
        agree(np.stack(found), wanted[0])
        agree_with(engine, wanted)
