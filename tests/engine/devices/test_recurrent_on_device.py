"""Models with recurrent states on a device: what crosses the bus, where a sequence can go back to, and the
kernels themselves, by NumPy in float64.
"""

import numpy as np
import pytest

from airllm import tensor_ops
from airllm.backends import registry
from airllm.backends.device.faults import MEMORY, DeviceFault
from airllm.backends.device.recurrent import Convolution, DeltaHeads, StateHeads
from airllm.engine.devices.fallback import BackendFallback
from airllm.layer_engine import LayerWiseInferenceEngine
from tests.support.engines import device_models
from tests.support.engines.device_models import agree, agree_with_all, counts, open_engine
from tests.support.models import tiny_gguf
from tests.support.models.tiny_models import DATA, VOCABULARY, reference, texts

KIB = 1024
TEXTS = texts()
TEXT = np.random.default_rng(4).integers(0, VOCABULARY - 1, 128).tolist()
NAMES = ("lfm2", "qwen3_5", "granite_hybrid", "falcon_h1", "nemotron_h_moe")
backend = device_models.backend
placed = device_models.placed
kernels_of_gpus = device_models.kernels_of_gpus


def open_host(path, **options) -> LayerWiseInferenceEngine:
    return LayerWiseInferenceEngine(path, backend="cpp", cache_dtype="f32", **options)


@pytest.mark.parametrize("name", NAMES)
def test_what_crosses_the_bus_per_token(name, backend):
    """States stay on the device, one for each of three places; ids go up and logits come back."""
    before = counts(backend)
    with open_engine(DATA / name, backend) as engine:
        opened = (counts(backend) - before).resident
        engine.forward(TEXTS[0][:-4], cache := engine.new_cache())
        states = cache.layout.state_bytes
        assert cache.recurrent.on_device() == list(cache.layout.recurrent) != []
        assert (counts(backend) - before).resident >= opened + states
        engine.forward(TEXTS[0][-4:-3], cache)
        for token in TEXTS[0][-3:]:
            start = counts(backend)
            logits = engine.forward([token], cache)
            spent = counts(backend) - start
            assert 0 < spent.uploaded <= 8 * KIB
            assert (spent.downloaded, spent.waits) == (logits.nbytes, 1)
            assert spent.resident == 0
            assert spent.submits == 1 or backend != "webgpu"
    del cache, engine
    assert (counts(backend) - before).resident == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_of_many_tokens_is_no_more_launches(name, placed):
    """A launch of a scan takes all tokens: none of them goes by way of the host."""
    with open_engine(DATA / name, placed) as engine:
        spent = []
        for count in (20, 60):
            start = counts(placed)
            engine.forward(TEXT[:count], engine.new_cache(), all_positions=True)
            spent.append(counts(placed) - start)
        few, many = spent
        assert (few.waits, many.waits) == (1, 1)
        assert many.downloaded == 3 * few.downloaded == 60 * 4 * VOCABULARY
        assert many.launches == few.launches


@pytest.mark.parametrize("name", (
    "lfm2", "qwen3_5", "qwen3_5_moe", "qwen3_next", "granite_hybrid", "granite_hybrid_moe", "nemotron_h",
    "nemotron_h_moe", "nemotron_h_mixed", "falcon_h1", "falcon_h1_norm",
))  # fmt: skip
def test_a_layer_of_a_token_is_few_launches(name, placed):
    """In folders, whose matrices may be joined, and have multipliers."""
    with open_engine(DATA / name, placed) as engine:
        engine.forward(TEXTS[1][:-1], cache := engine.new_cache())
        start = counts(placed)
        engine.forward(TEXTS[1][-1:], cache)
        most = (counts(placed) - start).launches - 3 - (engine.config.embedding_scale != 1)
        assert most <= 8 * engine.config.layers


@pytest.mark.parametrize("name", ("qwen3_5", "qwen3_next", "falcon_h1"))
def test_weights_in_blocks(name, backend, tmp_path):
    """GGUF files have the heads of the delta rule in another order, and no multipliers."""
    path = tiny_gguf.write_gguf(name, tmp_path / "tiny.gguf", "blocks")
    with open_engine(path, backend) as engine:
        agree_with_all(engine, reference(name, "blocks"))


def test_blocks_of_a_stack_are_unpacked(placed):
    """Also of a matrix that does not begin where kernels can take it."""
    ops, rng = registry.open_backend(placed).module.device_ops(), np.random.default_rng(3)
    matrices = [tensor_ops.quantize(normal(rng, rows, 64), "q8_0") for rows in (5, 7, 3)]
    assert matrices[0].nbytes % ops.place.alignment
    for moved, matrix in zip(ops.stack(matrices), matrices, strict=True):
        np.testing.assert_array_equal(ops.dequantize(moved).numpy(), matrix.dequantize())


@pytest.mark.parametrize("name", ("lfm2", "qwen3_5_moe", "nemotron_h"))
def test_kernels_of_gpus_compute_whole_models_too(name, kernels_of_gpus):
    with open_engine(DATA / name, "opencl") as engine:
        agree_with_all(engine, reference(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_sequence_goes_back_to_the_place_that_its_prompt_kept(name, backend):
    with open_engine(DATA / name, backend) as engine, open_host(DATA / name) as host:
        wanted = host.forward(TEXT, all_positions=True)
        agree(engine.forward(TEXT[:100], cache := engine.new_cache()), wanted[99])
        assert cache.marked == 64
        for _ in range(2):
            cache.truncate(90)
            assert cache.length == 64 and cache.is_on_device
            agree(engine.forward(TEXT[64:], cache), wanted[-1])
        cache.truncate(63)
        assert cache.length == 0
        agree(engine.forward(TEXT[:9], cache), wanted[8])


@pytest.mark.parametrize("name", ("lfm2", "qwen3_5", "falcon_h1"))
def test_a_copy_of_a_beginning_has_states_of_its_own(name, backend):
    with open_engine(DATA / name, backend) as engine, open_host(DATA / name) as host:
        wanted = host.forward(TEXT, all_positions=True)
        engine.forward(TEXT[:100], cache := engine.new_cache())
        for length in (64, 100):
            other = engine.new_cache()
            other.copy_prefix(cache, length)
            assert other.recurrent.on_device() == cache.recurrent.on_device()
            agree(engine.forward(TEXT[length:], other), wanted[-1])
        agree(engine.forward(TEXT[100:], cache), wanted[-1])


@pytest.mark.parametrize("name", ("lfm2", "granite_hybrid"))
def test_a_chat_computes_only_what_follows_the_kept_place(name, placed, tmp_path):
    path = tiny_gguf.write_gguf(name, tmp_path / "tiny.gguf")
    with open_engine(path, placed) as engine, open_host(path) as host:
        for prompt, kept in ((TEXT[:100], 0), (TEXT[:100], 64), ([*TEXT[:70], *TEXT[:9]], 64)):
            assert engine.generate(prompt, max_new_tokens=6) == host.generate(prompt, max_new_tokens=6)
            assert engine.statistics.cached_tokens == kept


@pytest.mark.parametrize("name", ("qwen3_5", "falcon_h1"))
def test_sequences_in_files(name, backend, tmp_path):
    """The file has each state that was computed on the device: a processor goes on with it, and goes back."""
    with open_engine(DATA / name, backend, kv_cache_dir=tmp_path) as engine:
        engine.forward(TEXT[:80], cache := engine.new_cache("talk"))
        for token in TEXT[80:83]:
            engine.forward([token], cache)
    del cache
    with open_host(DATA / name, kv_cache_dir=tmp_path) as host:
        wanted = host.forward(TEXT, all_positions=True)
        cache = host.new_cache("talk")
        assert (cache.length, cache.marked) == (83, 64)
        agree(host.forward(TEXT[83:86], cache), wanted[85])
        cache.truncate(70)
        agree(host.forward(TEXT[64:90], cache), wanted[89])
    del cache
    with open_engine(DATA / name, backend, kv_cache_dir=tmp_path) as engine:
        agree(engine.forward(TEXT[90:91], cache := engine.new_cache("talk")), wanted[90])
        cache.truncate(0)
        agree(engine.forward(TEXT[:5], cache), wanted[4])
    del cache
    with open_host(DATA / name, kv_cache_dir=tmp_path) as host:
        agree(host.forward(TEXT[5:7], host.new_cache("talk")), wanted[6])


@pytest.mark.parametrize("form", ("split", "stream"))
@pytest.mark.parametrize("name", ("lfm2_moe", "qwen3_next", "granite_hybrid", "falcon_h1", "nemotron_h_moe"))
def test_models_larger_than_the_device(name, form, placed):
    with open_engine(DATA / name, placed, gpu_layers=1, offload=form) as engine:
        plan = engine.model.on_device.plan
        assert (plan.form, plan.stays) == (form, 1)
        agree_with_all(engine, reference(name))


def test_states_count_in_a_budget(placed):
    """What a plan says is enough is enough, and holds the states of a sequence."""
    with open_engine(DATA / "qwen3_5", placed) as engine:
        plan, cache = engine.model.on_device.plan, engine.new_cache()
        assert plan.caches >= cache.layout.state_bytes > 0
    with open_engine(DATA / "qwen3_5", placed, device_memory=plan.nbytes) as engine:
        agree(engine.forward(TEXTS[1]), reference("qwen3_5")[1][-1])


@pytest.mark.parametrize("form", ({}, {"gpu_layers": 1}, {"gpu_layers": 1, "offload": "stream"}), ids=str)
@pytest.mark.parametrize("lost", (False, True))
def test_another_backend_goes_on_with_all_states(lost, form, placed, monkeypatch):
    """A device that lacks memory gives them back; after a loss the tokens are computed again."""
    wanted = reference("qwen3_5")[1]
    with open_engine(DATA / "qwen3_5", placed, fallback_backends=["cpp"], **form) as engine:
        engine.forward(TEXTS[1][:11], other := engine.new_cache())
        engine.forward(TEXTS[1][:9], cache := engine.new_cache())
        place = engine.model.on_device.device.place

        def failing(*given):
            raise DeviceFault("lost" if lost else MEMORY, place.label, "planted")

        monkeypatch.setattr(place, "run", failing)
        if lost:
            monkeypatch.setattr(place, "download", failing)
        with pytest.warns(BackendFallback, match=r"^cpp goes on: "):
            agree(engine.forward(TEXTS[1][9:10], cache), wanted[9])
        assert not cache.is_on_device and not other.is_on_device
        agree(engine.forward(TEXTS[1][10:], cache), wanted[-1])
        agree(engine.forward(TEXTS[1][11:], other), wanted[-1])


# ---- the kernels ----


def recurrence_of(backend):
    ops = registry.open_backend(backend).module.device_ops()
    return ops, ops.extension("device_recurrence")


def placed_in(ops, rows: np.ndarray, wide: int, at: int):
    """Rows on a device as part of wider ones."""
    whole = np.zeros((len(rows), wide), np.float32)
    whole[:, at : at + rows.shape[1]] = rows
    return ops.to_device(whole)[:, at : at + rows.shape[1]]


def normal(rng, *shape) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def near(found, wanted) -> None:
    np.testing.assert_allclose(found, wanted, atol=2e-5 * np.abs(wanted).max())


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, x.astype(np.float64))


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x.astype(np.float64)))


@pytest.mark.parametrize("tokens", (1, 2, 9))
@pytest.mark.parametrize(("gated", "biased"), ((True, False), (False, True), (False, False)))
def test_convolutions(gated, biased, tokens, backend):
    """Of rows that are part of wider ones; the new state may begin with inputs of the old one."""
    ops, device = recurrence_of(backend)
    rng, channels, count = np.random.default_rng(tokens), 70, 4
    x, taps = normal(rng, tokens, channels * (3 if gated else 1)), normal(rng, channels, count)
    state, bias = normal(rng, count - 1, channels), normal(rng, channels)
    first, second, given = np.split(x, 3, axis=1) if gated else (1, 1, x)
    inputs = np.concatenate([state, first * given]).astype(np.float64)
    wanted = np.stack([(inputs[t : t + count] * taps.T).sum(axis=0) for t in range(tokens)])
    wanted = wanted * second if gated else silu(wanted + (bias if biased else 0))
    states = ops.to_device(state), ops.empty(state.shape)
    given_bias = ops.to_device(bias) if biased else None
    there = placed_in(ops, x, x.shape[1] + 9, 5)
    found = device.convolve(Convolution(there, ops.to_device(taps), given_bias, states), not gated, gated)
    near(found.numpy(), wanted)
    near(states[1].numpy(), inputs[tokens:])
    np.testing.assert_array_equal(states[0].numpy(), state)


def scan_in_several_launches(ops, monkeypatch) -> None:
    """Have a launch take three tokens at the most, on devices that count them."""
    if hasattr(ops, "place") and not isinstance(ops.place, tuple):
        monkeypatch.setattr(ops.place, "most_tokens", lambda *given: 3, raising=False)


def convolution_of(
    ops, rng, tokens: int, channels: int, biased: bool, order: np.ndarray, rest: int = 0, joined=None
) -> tuple[Convolution, np.ndarray, np.ndarray]:
    """A convolution, what it is by silu, and its state afterwards. `order`: where channels are in rows of x,
    which have `rest` more values.
    """
    count = 4
    x, taps = normal(rng, tokens, channels + rest), normal(rng, channels, count)
    state, bias = normal(rng, count - 1, channels), normal(rng, channels) if biased else None
    inputs = np.concatenate([state, x[:, order]]).astype(np.float64)
    mixed = np.stack([(inputs[t : t + count] * taps.T).sum(axis=0) for t in range(tokens)])
    states = ops.to_device(state), ops.empty(state.shape)
    given_bias = ops.to_device(bias) if biased else None
    given = Convolution(placed_in(ops, x, x.shape[1] + 9, 5), ops.to_device(taps), given_bias, states, joined)
    return given, silu(mixed + bias if biased else mixed), inputs[tokens:]


@pytest.mark.parametrize("parted", (False, True))
@pytest.mark.parametrize("joined", (False, True))
@pytest.mark.parametrize("tiled", (False, True))
@pytest.mark.parametrize("tokens", (1, 13))
def test_scans_of_the_delta_rule(tokens, tiled, joined, parted, backend, monkeypatch):
    """With the convolution before it. `joined`: rows have queries, keys, values and gates by key head."""
    ops, device = recurrence_of(backend)
    if parted:
        scan_in_several_launches(ops, monkeypatch)
    heads, rng = DeltaHeads(2, 6, 8, 70, tiled), np.random.default_rng(tokens)
    channels, order, rest = 2 * 2 * 8 + heads.values, np.arange(32 + heads.values), 0
    if joined:
        by_key_head, rest = np.arange(32 + 2 * heads.values).reshape(2, -1), heads.values
        stops = np.cumsum((8, 8, heads.values // 2))
        order = np.concatenate([each.ravel() for each in np.split(by_key_head, stops, axis=1)[:3]])
    given_inputs, mixed, left = convolution_of(
        ops, rng, tokens, channels, False, order, rest, heads if joined else None
    )
    rates = normal(rng, tokens, 6)
    steps, decay, bias = 4 * normal(rng, tokens, 6), -np.abs(normal(rng, 6)), normal(rng, 6)
    first = normal(rng, 6, 8, 70)
    q, k = (mixed[:, at : at + 16].reshape(tokens, 2, 8).astype(np.float64) for at in (0, 16))
    q, k = (each / np.sqrt((each**2).sum(axis=-1, keepdims=True) + 1e-6) for each in (q, k))
    state, wanted = first.astype(np.float64), []
    for t in range(tokens):
        answers = []
        for head in range(6):
            of = head % 2 if tiled else head // 3
            v = mixed[t, 32 + 70 * head :][:70]
            state[head] *= np.exp(decay[head] * softplus(steps[t, head] + bias[head]))
            missed = (v - k[t, of] @ state[head]) / (1 + np.exp(-rates[t, head]))
            state[head] += np.outer(k[t, of], missed)
            answers.append(q[t, of] @ state[head] / np.sqrt(8))
        wanted.append(np.concatenate(answers))
    states = ops.to_device(first), ops.empty(first.shape)
    given = placed_in(ops, rates, 31, 3), placed_in(ops, steps, 17, 7)
    vectors = ops.to_device(decay), ops.to_device(bias)
    found = device.scan_delta(given_inputs, *given, *vectors, states, heads)
    near(found.numpy(), np.stack(wanted))
    near(states[1].numpy(), state)
    near(given_inputs.states[1].numpy(), left)


@pytest.mark.parametrize("parted", (False, True))
@pytest.mark.parametrize("biased", (False, True))
@pytest.mark.parametrize("tokens", (1, 13))
def test_scans_of_state_spaces(tokens, biased, parted, backend, monkeypatch):
    """With the convolution before it."""
    ops, device = recurrence_of(backend)
    if parted:
        scan_in_several_launches(ops, monkeypatch)
    heads, rng = StateHeads(6, 2, 70, 8), np.random.default_rng(tokens)
    channels, steps = heads.values + 2 * 2 * 8, 4 * normal(rng, tokens, 6)
    given, mixed, left = convolution_of(ops, rng, tokens, channels, biased, np.arange(channels))
    decay, bias, skip = -np.abs(normal(rng, 6)), normal(rng, 6), normal(rng, 6)
    first = normal(rng, 6, 8, 70)
    state, wanted = first.astype(np.float64), []
    for t in range(tokens):
        read = []
        for head in range(6):
            writes, reads = (mixed[t, 420 + at + 8 * (head // 3) :][:8] for at in (0, 16))
            v, step = mixed[t, 70 * head :][:70], softplus(steps[t, head] + bias[head])
            state[head] = np.exp(decay[head] * step) * state[head] + np.outer(writes, step * v)
            read.append(reads @ state[head] + skip[head] * v)
        wanted.append(np.concatenate(read))
    states = ops.to_device(first), ops.empty(first.shape)
    vectors = (ops.to_device(each) for each in (decay, bias, skip))
    found = device.scan_states(given, placed_in(ops, steps, 17, 7), *vectors, states, heads)
    near(found.numpy(), np.stack(wanted))
    near(states[1].numpy(), state)
    near(given.states[1].numpy(), left)


@pytest.mark.parametrize("most", (256, 8))
def test_a_convolution_is_part_of_the_scan_of_a_token(most, placed, monkeypatch):
    """Where rates and steps lie in the rows of x, as products of one row do. WebGPU: of long vectors, it is a
    launch of its own.
    """
    ops, device = recurrence_of(placed)
    if placed == "webgpu":
        import tensor_ops_webgpu.recurrent_launches as launches

        monkeypatch.setattr(launches, "_LONGEST_VECTOR", most)
    heads, rng, channels = DeltaHeads(2, 6, 16, 70, False), np.random.default_rng(3), 64 + 420
    x, taps, state = normal(rng, 1, channels + 12), normal(rng, channels, 4), normal(rng, 3, channels)
    decay, bias, matrices = -np.abs(normal(rng, 6)), normal(rng, 6), normal(rng, 6, 16, 70)
    row, vectors = ops.to_device(x), ops.stack([decay, bias])

    def scan(convolve: bool) -> list[np.ndarray]:
        before = ops.to_device(state), ops.empty(state.shape)
        of_heads = ops.to_device(matrices), ops.empty(matrices.shape)
        rates, steps = row[:, channels : channels + 6], row[:, channels + 6 :]
        given = Convolution(row[:, :channels], ops.to_device(taps), None, before)
        start = counts(placed).launches
        found = device.scan_delta(given, rates, steps, *vectors, of_heads, heads)
        if placed != "webgpu":  # whose launches wait
            assert counts(placed).launches - start == 1 + convolve
        return [each.numpy() for each in (found, before[1], of_heads[1])]

    one = scan(convolve=False)
    monkeypatch.setattr(type(ops.place), "fuses", lambda *given: False)
    for first, second in zip(one, scan(convolve=True), strict=True):
        near(first, second)


@pytest.mark.parametrize("norm_first", (False, True))
@pytest.mark.parametrize("weights", (0, 1, 3))
def test_gates_with_norms(weights, norm_first, backend):
    """With no weights, with weights that all parts of a row share, and with some for each part."""
    ops, device = recurrence_of(backend)
    rng, dim, eps = np.random.default_rng(weights), 70, 0.25
    x, gate, weight = normal(rng, 4, 3 * dim), normal(rng, 4, 3 * dim), normal(rng, max(weights, 1), dim)

    def normed(each):
        parts = each.reshape(4, 3, dim)
        scale = np.sqrt((parts**2).mean(axis=-1, keepdims=True) + eps)
        return (parts / scale * weight).reshape(each.shape)

    if not weights:
        wanted = x * silu(gate)
    else:
        wanted = normed(x.astype(np.float64)) * silu(gate) if norm_first else normed(x * silu(gate))
    given = ops.to_device(weight.reshape(-1)) if weights else None
    there = placed_in(ops, gate, 3 * dim + 11, 6)
    near(device.gate_and_norm(ops.to_device(x), there, given, 3, eps, norm_first).numpy(), wanted)


def test_gates_of_attention(backend):
    ops, device = recurrence_of(backend)
    rng = np.random.default_rng(7)
    x, both = normal(rng, 4, 3, 10), normal(rng, 4, 3, 20)
    found = device.gate(ops.to_device(x), ops.to_device(both)[:, :, 10:])
    near(found.numpy(), (x / (1 + np.exp(-both[:, :, 10:]))).reshape(4, 30))
