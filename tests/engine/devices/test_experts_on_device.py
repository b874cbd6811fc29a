"""Experts on a device: the router's choice, products with the chosen experts, and whole models."""

import dataclasses

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from airllm import PersistentKernel
from airllm.backends import registry
from airllm.backends.device.experts import MOST_EXPERTS, Activation, Mixture, Parted, Router
from airllm.convert.quantize import quantize
from airllm.engine.layers import experts
from airllm.formats import Quantized
from airllm.layer_engine import LayerWiseInferenceEngine
from tests.support.engines import device_models
from tests.support.engines.device_models import agree, counts, open_engine, running
from tests.support.models import tiny_gguf, wide_gguf
from tests.support.models.stored import blocks
from tests.support.models.tiny_models import AS_GGUF, DATA, SHORT, reference, texts

TEXTS = texts()
WITH_EXPERTS = ("moe", "mixtral", "gpt_oss", "minimax")
ELSEWHERE = ("gemma4_moe",)  # test_on_device.py tests it
FILES = [name for name in AS_GGUF if any(part in name for part in WITH_EXPERTS) and name not in ELSEWHERE]
ROUTER = Router(8, 2, "softmax", 1, 1, True, 1.0)
ROUTERS = (
    ROUTER,
    ROUTER._replace(experts=300, used=9, normalize=False, scale=2.5),
    ROUTER._replace(experts=64, used=6, scores="sigmoid", groups=8, groups_used=3),
    ROUTER._replace(experts=64, used=6, groups=8, groups_used=3, group_best=1),
)
backend, placed = device_models.backend, device_models.placed
kernels_of_gpus = device_models.kernels_of_gpus


@dataclasses.dataclass
class Layer:
    """What the decoder asks of a layer when it chooses experts."""

    config: object
    weights: dict

    def __getitem__(self, name):
        return self.weights[name]

    def get(self, name):
        return self.weights.get(name)


class Identity:
    """Ops whose product is the input: the logits themselves."""

    @staticmethod
    def linear(x, weight, bias=None):
        return x

    @staticmethod
    def softmax(x):
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)


@dataclasses.dataclass
class Config:
    """The fields of a ModelConfig that the choice depends on."""

    expert_scores: str
    experts_used: int
    expert_groups: int
    expert_groups_used: int
    normalize_experts: bool
    expert_scale: float
    selection_bias: bool
    dense_and_experts: bool = False
    scales_input: bool = False
    expert_group_best: int = 2


def definition(logits: np.ndarray, bias, router: Router):
    """What the decoder chooses in host memory."""
    sizes = router.scores, router.used, router.groups, router.groups_used, router.normalize, router.scale
    config = Config(*sizes, bias is not None)
    weights = {"experts.router": None, "experts.selection_bias": bias}
    config.expert_group_best = router.group_best
    return experts._route(Identity, logits, Layer(config, weights))


@pytest.fixture
def ops(backend):
    return registry.open_backend(backend).module.device_ops()


@pytest.mark.parametrize("biased", (False, True))
@pytest.mark.parametrize(
    "router", ROUTERS, ids=lambda router: f"{router.used}of{router.experts}by{router.group_best}"
)
def test_the_choice_is_the_decoders(router, biased, ops):
    """Of equal scores the first expert is chosen, on MLX any."""
    rng = np.random.default_rng(3)
    logits = rng.standard_normal((5, router.experts), np.float32)
    if ops.name() != "mlx":
        logits[2, 1::2] = logits[2, ::2]
    bias = rng.standard_normal(router.experts, np.float32) / 4 if biased else None
    given = None if bias is None else ops.to_device(bias)
    ids, weights = ops.extension("device_experts").choose(ops.to_device(logits), given, router)
    chosen, wanted = definition(logits, bias, router)
    np.testing.assert_array_equal(ids.numpy(), chosen)
    np.testing.assert_allclose(weights.numpy(), wanted, rtol=3e-6)


def test_an_expert_is_chosen_even_if_no_score_is_a_number(ops):
    logits = np.full((2, 8), np.nan, np.float32)
    ids, weights = ops.extension("device_experts").choose(ops.to_device(logits), None, ROUTER)
    assert np.isin(ids.numpy(), range(8)).all() and np.isnan(weights.numpy()).all()


def test_too_many_experts_for_the_kernels_are_named():
    ops = registry.open_backend(running("opencl")).module.device_ops()
    router = ROUTER._replace(experts=MOST_EXPERTS + 1)
    with pytest.raises(NotImplementedError, match="uses 2 of 1025, expected at most 64 of 1024 on a device"):
        ops.extension("device_experts").choose(ops.empty((1, router.experts)), None, router)


def weights_of(name: str, shape: tuple[int, int, int]):
    """Weights of experts, as stored, and their values in float64."""
    if name in ("float32", "float16", "bfloat16"):
        stored = np.random.default_rng(5).standard_normal(shape).astype(np.dtype(name))
        return stored, stored.astype(np.float64)
    flat = blocks(name, (shape[0] * shape[1], shape[2]), largest=0.5)
    stored = Quantized(flat.data.reshape(*shape[:2], -1), name)
    return stored, stored.dequantize().astype(np.float64)


def check_products(ops, name: str, k: int) -> None:
    """Of rows of tokens and of slots, with and without a bias; n is odd."""
    rng = np.random.default_rng(4)
    stored, exact = weights_of(name, (5, 7, k))
    there, experts = ops.to_device(stored), ops.extension("device_experts")
    chosen = np.array([[4, 0], [1, 1], [3, 4]], np.int32)
    bias = rng.standard_normal((5, 7), np.float32)
    rounded = 1e-3 if ops.name() == "mlx" and not hasattr(there, "parts") else 3e-6
    for x, given in ((3, bias), (6, None)):
        x = rng.standard_normal((x, k), np.float32)
        slots = np.repeat(x, 6 // len(x), axis=0).astype(np.float64)
        wanted = np.einsum("sk,snk->sn", slots, exact[chosen.reshape(-1)])
        wanted += 0 if given is None else given[chosen.reshape(-1)]
        moved = None if given is None else ops.to_device(given)
        found = experts.linear(ops.to_device(x), ops.to_device(chosen), there, moved).numpy()
        assert np.abs(found - wanted).max() <= rounded * np.abs(exact).max() * np.sqrt(k) * 3
        weights = rng.standard_normal((3, 2), np.float32)
        mixed = experts.mix(ops.to_device(wanted.astype(np.float32)), ops.to_device(weights)).numpy()
        exactly = (weights[..., None] * wanted.reshape(3, 2, -1)).sum(axis=1)
        np.testing.assert_allclose(mixed, exactly, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize(("name", "k"), (
    ("float32", 40), ("bfloat16", 64), ("q4_0", 96), ("q8_0", 64), ("q4_1", 64), ("q6_k", 512), ("mxfp4", 64),
))  # fmt: skip
def test_products_are_those_of_the_chosen_experts(name, k, ops):
    check_products(ops, name, k)


@pytest.mark.parametrize("up", ("", "q8_0", "q5_1", "float32"))
@pytest.mark.parametrize("kind", ("opencl", "webgpu", "kernels of GPUs"))
def test_a_mixture_is_the_sum_of_its_experts_whatever_rows_come_with_it(kind, up, request):
    """The router's input is the norm of a sum; the shared expert has another format, and a gate. `up`: the
    format of what the experts' gates multiply, if that is another.
    """
    if kind == "kernels of GPUs":
        request.getfixturevalue("kernels_of_gpus")
    placed = running("webgpu" if kind == "webgpu" else "opencl")
    ops, rng, k = registry.open_backend(placed).module.device_ops(), np.random.default_rng(6), 64
    stored, exact = {}, {}
    for name, format, shape in (
        ("experts.gate_up", "q4_0", (5, 64, k)), ("experts.down", "q4_0", (5, k, 32)),
        ("shared_expert.gate", "q8_0", (1, 96, k)), ("shared_expert.up", "q8_0", (1, 96, k)),
        ("shared_expert.down", "q8_0", (1, k, 96)),
    ):  # fmt: skip
        found, exact[name] = weights_of(format, shape)
        one = shape[0] == 1
        stored[name] = Quantized(found.data[0], format) if one else found
        exact[name] = exact[name][0] if one else exact[name]
    for name, shape in (("experts.router", (5, k)), ("shared_expert.router", (1, k)), ("norm", (k,))):
        stored[name] = exact[name] = rng.standard_normal(shape, np.float32)
    if up:
        gate = stored.pop("experts.gate_up").data[:, :32]
        stored["experts.gate"] = Quantized(np.ascontiguousarray(gate), "q4_0")
        stored["experts.up"], exact["experts.up"] = weights_of(up, (5, 32, k))
        exact["experts.gate_up"][:, 32:] = exact["experts.up"]
    there = {name: ops.to_device(each) for name, each in stored.items()}
    pair = "shared_expert.gate", "shared_expert.up"
    there |= zip(pair, ops.stack([stored[name] for name in pair]), strict=True)
    given = Mixture(ROUTER._replace(experts=5), Activation("silu"), False, there)
    x, residual = (rng.standard_normal((3, k), np.float32) for _ in range(2))

    def compute(rows: slice) -> tuple[np.ndarray, np.ndarray]:
        moved = (ops.to_device(each[rows]) for each in (x, residual))
        total, normed = ops.add_rms_norm(*moved, there["norm"], 0.25)
        start = counts(placed)
        found = ops.extension("device_experts").mixture(normed, normed, given)
        assert (counts(placed) - start).launches == 3 * (placed == "opencl")
        return found.numpy(), total.numpy()

    found, total = compute(slice(3))
    np.testing.assert_allclose(total, x + residual, rtol=1e-6)
    wanted = sum_of_experts((x + residual).astype(np.float64), exact)
    assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()
    for row in range(3):
        for one, among in zip(compute(slice(row, row + 1)), (found, total), strict=True):
            np.testing.assert_array_equal(one[0], among[row])


@pytest.mark.parametrize("shared", (False, True))
@pytest.mark.parametrize("latent", (False, True))
@pytest.mark.parametrize("kind", ("opencl", "webgpu", "kernels of GPUs"))
def test_experts_without_gates_are_a_mixture(kind, latent, shared, request):
    """Those of a layer, or latent ones, which get and make other vectors; with a shared expert, or not."""
    if kind == "kernels of GPUs":
        request.getfixturevalue("kernels_of_gpus")
    placed = running("webgpu" if kind == "webgpu" else "opencl")
    ops, rng, k = registry.open_backend(placed).module.device_ops(), np.random.default_rng(8), 96
    inner, stored, exact = 32 if latent else k, {}, {}
    shapes = {"experts.up": (5, 64, inner), "experts.down": (5, inner, 64)}
    if shared:
        shapes |= {"shared_expert.up": (1, 96, k), "shared_expert.down": (1, k, 96)}
    if latent:
        shapes |= {"experts.latent_in": (1, inner, k)}
    for name, shape in shapes.items():
        found, exact[name] = weights_of("q4_0", shape)
        stored[name] = Quantized(found.data[0], "q4_0") if shape[0] == 1 else found
    for name, shape in (("experts.router", (5, k)), ("norm", (k,))):
        stored[name] = exact[name] = rng.standard_normal(shape, np.float32)
    there = {name: ops.to_device(each) for name, each in stored.items()}
    given = Mixture(ROUTER._replace(experts=5), Activation("relu2"), False, there)
    x, residual = (rng.standard_normal((3, k), np.float32) for _ in range(2))
    normed = rms_of((x + residual).astype(np.float64)) * exact["norm"]
    wanted = [sum_of_experts_without_gates(row, exact, latent) for row in normed]
    for rows in (slice(3), slice(1, 2)):
        moved = (ops.to_device(each[rows]) for each in (x, residual))
        _, of_router = ops.add_rms_norm(*moved, there["norm"], 0.25)
        start = counts(placed)
        found = ops.extension("device_experts").mixture(of_router, of_router, given)
        assert (counts(placed) - start).launches == (3 + latent) * (placed == "opencl")
        mixed, of_shared = found if latent else (found, None)
        assert (of_shared is not None) == (latent and shared)
        for part, each in ((0, mixed), (1, of_shared)):
            if each is not None:
                right = np.stack([row[part] for row in wanted[rows]])
                assert np.abs(each.numpy() - right).max() <= 3e-6 * np.abs(right).max()


def rms_of(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 0.25)


def sum_of_experts_without_gates(
    x: np.ndarray, w: dict, latent: bool
) -> tuple[np.ndarray, np.ndarray | None]:
    """What `ROUTER` mixes of five experts, and a shared one apart from latent ones, else with them."""

    def expert(up: np.ndarray, down: np.ndarray, x: np.ndarray) -> np.ndarray:
        return down @ np.maximum(up @ x, 0) ** 2

    logits = w["experts.router"] @ x
    ids = np.argsort(-logits)[: ROUTER.used]
    share = np.exp(logits[ids] - logits.max())
    inner = w["experts.latent_in"][0] @ x if latent else x
    mixed = sum(
        weight * expert(w["experts.up"][i], w["experts.down"][i], inner)
        for i, weight in zip(ids, share / share.sum(), strict=True)
    )
    if "shared_expert.up" not in w:
        return mixed, None
    of_shared = expert(w["shared_expert.up"][0], w["shared_expert.down"][0], x)
    return (mixed, of_shared) if latent else (mixed + of_shared, None)


def sum_of_experts(total: np.ndarray, w: dict) -> np.ndarray:
    """What `ROUTER` mixes of five experts and a gated shared one, in float64."""
    normed = total / np.sqrt((total**2).mean(axis=-1, keepdims=True) + 0.25) * w["norm"]

    def expert(gate: np.ndarray, up: np.ndarray, down: np.ndarray, x: np.ndarray) -> np.ndarray:
        z = gate @ x
        return down @ (z / (1 + np.exp(np.minimum(-z, 700))) * (up @ x))

    rows = []
    for x in normed:
        logits = w["experts.router"] @ x
        ids = np.argsort(-logits)[: ROUTER.used]
        share = np.exp(logits[ids] - logits.max())
        share /= share.sum()
        shared = expert(*(w[f"shared_expert.{name}"] for name in ("gate", "up", "down")), x)
        found = shared / (1 + np.exp(-w["shared_expert.router"][0] @ x))
        for i, weight in zip(ids, share, strict=True):
            found += weight * expert(*np.split(w["experts.gate_up"][i], 2), w["experts.down"][i], x)
        rows.append(found)
    return np.stack(rows)


@pytest.mark.parametrize("name", FILES)
def test_logits_of_models_in_blocks_are_those_of_transformers(name, backend, tmp_path):
    path = tiny_gguf.write_gguf(name, tmp_path / "tiny.gguf", "blocks")
    wanted = reference(name, "blocks")[1]
    with open_engine(path, backend) as engine:
        agree(engine.forward(TEXTS[1][:-3], cache := engine.new_cache()), wanted[-4])
        agree(np.stack([engine.forward([token], cache) for token in TEXTS[1][-3:]]), wanted[-3:])


def test_a_token_waits_once_and_nothing_of_the_experts_crosses(backend):
    """Router, choice, gate with up, down and their sum take the place of two launches. The rows of the
    embedding are converted from bfloat16.
    """
    with open_engine(DATA / "mixtral", backend) as engine:
        engine.forward(TEXTS[1][:-3], cache := engine.new_cache())
        start = counts(backend)
        logits = engine.forward([TEXTS[1][-3]], cache)
        spent = counts(backend) - start
        assert 0 < spent.uploaded <= 4096
        assert spent.downloaded == logits.nbytes and spent.waits == 1
        assert spent.launches <= 8 * engine.config.layers + 4


@pytest.mark.parametrize(("name", "format"), (
    ("qwen2_moe", "q4_1"), ("gpt_oss", "mxfp4"), ("glm4_moe_groups", "q5_0"), ("qwen3_moe", "q4_k"),
))  # fmt: skip
def test_a_layer_with_experts_is_at_most_eight_launches(name, format, placed, tmp_path):
    """Softmax with and without a shared expert and its gate, biases, sigmoids, groups; formats with and
    without kernels of their own for CPU devices. Before and after the layers come the embedding, the last
    norm and the output.
    """
    path = tmp_path / "blocks.gguf"
    if format == "q4_k":
        wide_gguf.write_wide(name, path, GGMLQuantizationType.Q4_K)
    else:
        quantize(tiny_gguf.write_gguf(name, tmp_path / "floats.gguf"), path, format)
    with open_engine(path, placed) as engine, open_engine(path, "python", False) as host:
        engine.forward(TEXTS[1][:-3], cache := engine.new_cache())
        wanted = host.forward(TEXTS[1], all_positions=True)[-3:]
        for token, logits in zip(TEXTS[1][-3:], wanted, strict=True):
            start = counts(placed)
            agree(engine.forward([token], cache), logits)
            assert (counts(placed) - start).launches <= 8 * engine.config.layers + 3


@pytest.mark.parametrize("name", ("qwen2_moe", "gpt_oss", "deepseek_v3"))
def test_the_persistent_kernel_and_kept_prompts(name, backend):
    wanted = reference(name)[0]
    kernel = PersistentKernel(model=DATA / name, backend=backend, cache_dtype="f32").compile()
    try:
        found = [kernel.prefill(TEXTS[0][:SHORT]), *map(kernel.step, TEXTS[0][SHORT : SHORT + 3])]
        agree(np.stack(found), wanted[SHORT - 1 : SHORT + 3])
    finally:
        kernel.close()
    with open_engine(DATA / name, backend) as engine:
        engine.forward(TEXTS[0][:SHORT], kept := engine.new_cache())
        other = engine.new_cache()
        other.copy_prefix(kept, SHORT - 4)
        agree(engine.forward(TEXTS[0][SHORT - 4 : SHORT], other), wanted[SHORT - 1])


def test_compute_in_float32_uses_the_experts_of_the_device(backend):
    with open_engine(DATA / "mixtral", backend, compute="float32") as engine:
        agree(engine.forward(TEXTS[1]), reference("mixtral")[1][-1])


def check_parted(ops, gate: Activation | None) -> None:
    """Products with experts in three formats, one of which no slot uses, against float64."""
    rng, n, k = np.random.default_rng(7), 6, 64
    rows = n * (2 if gate else 1)
    chosen = np.array([[4, 0], [1, 1], [3, 4]], np.int32)
    exact, parts = np.empty((6, rows, k)), []
    for name, numbers in (("q4_0", [0, 3]), ("float16", [1, 4, 5]), ("q8_0", [2])):
        stored, exact[numbers] = weights_of(name, (len(numbers), rows, k))
        places = np.full(6, -1, np.int32)
        places[numbers] = range(len(numbers))
        parts.append((ops.to_device(stored), ops.to_device(places)))
    x, bias = rng.standard_normal((3, k), np.float32), rng.standard_normal((6, rows), np.float32)
    wanted = np.einsum("sk,snk->sn", np.repeat(x, 2, axis=0).astype(np.float64), exact[chosen.reshape(-1)])
    wanted += bias[chosen.reshape(-1)]
    if gate:
        wanted = wanted[:, :n] / (1 + np.exp(np.minimum(-wanted[:, :n], 700))) * wanted[:, n:]
    moved = [ops.to_device(each) for each in (x, chosen, bias)]
    experts = ops.extension("device_experts")
    found = experts.linear(moved[0], moved[1], Parted(tuple(parts)), moved[2], gate).numpy()
    rounded = 1e-3 if ops.name() == "mlx" else 3e-6
    assert np.abs(found - wanted).max() <= rounded * np.abs(wanted).max()


@pytest.mark.parametrize("gate", (None, Activation("silu")), ids=("plain", "gated"))
def test_products_with_experts_in_several_formats(gate, ops):
    check_parted(ops, gate)


def test_products_with_experts_in_several_formats_by_kernels_of_gpus(kernels_of_gpus):
    check_parted(registry.open_backend("opencl").module.device_ops(), Activation("silu"))


@pytest.mark.parametrize("given", (None, "stream"))
@pytest.mark.parametrize("parts", (("up",), ("gate", "up"), ("gate", "up", "down")), ids="+".join)
def test_experts_in_several_formats_run_on_the_device(parts, given, backend, monkeypatch):
    """Expert 1 of each layer has another format than the others: of the matrices that gates multiply alone,
    or of both; also if the layer's matrices pass through the device.
    """
    from airllm.memory.layers import Experts

    def look_up(self, number):
        found = plain(self, number)
        if number == 1:
            found = found | {part: found[part].astype(np.float16) for part in parts}
        return found

    plain = Experts.look_up
    monkeypatch.setattr(Experts, "look_up", look_up)
    options = {"gpu_layers": 1, "offload": given} if given else {}
    if given and backend == "mlx":
        pytest.skip("MLX streams no layers")
    with (
        LayerWiseInferenceEngine(DATA / "mixtral", backend="python", cache_dtype="f32") as host,
        open_engine(DATA / "mixtral", backend, **options) as engine,
    ):
        wanted = host.forward(TEXTS[1], all_positions=True)
        engine.forward(TEXTS[1][:-2], cache := engine.new_cache())
        start = counts(backend)
        agree(engine.forward([TEXTS[1][-2]], cache), wanted[-2])
        if not given:
            spent = counts(backend) - start
            assert 0 < spent.uploaded <= 4096 and spent.downloaded == wanted[-2].nbytes
        agree(engine.forward([TEXTS[1][-1]], cache), wanted[-1])
