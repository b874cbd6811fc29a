"""Folders with quantized weights, against each format's definition in float64, and models made of them."""

import json
import re
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from airllm.cli.commands import main
from airllm.convert.quantize import quantize
from airllm.engine import info
from airllm.files import ModelFileError
from airllm.files.open_weights import open_weights
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory.budget import MemoryBudgetError
from tests.support.models import published, tokenizer_files
from tests.support.models.tiny_models import DATA, read_folder, texts

EXACT = 2e-4  # of the logits' range
Q8_0 = 1 / 254 + 2**-11  # half a step, and the rounding of the scale

_BNB = {"quant_method": "bitsandbytes"}
_COMPRESSED = {"quant_method": "compressed-tensors", "format": "pack-quantized"}


def _groups(**weights):
    return {"config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


def _integers(bits, symmetric, **more):
    return _groups(num_bits=bits, type="int", strategy="group", group_size=32, symmetric=symmetric, **more)


# name -> quantization_config, how a matrix is made, the format that it is opened as, how far values may be,
# as a part of a group's largest one
CASES = {
    "gptq": (
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True},
        partial(published.gptq, bits=4, group=32, symmetric=True), "q4_0", 0,
    ),
    "gptq_zeros": (
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False},
        partial(published.gptq, bits=4, group=32, symmetric=False), "q5_0", 0,
    ),
    "gptq_v2": (
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "checkpoint_format": "gptq_v2"},
        partial(published.gptq, bits=4, group=32, symmetric=False, stored_less=0), "q5_0", 0,
    ),
    "gptq_3": (
        {"quant_method": "gptq", "bits": 3, "group_size": 32, "sym": False},
        partial(published.gptq, bits=3, group=32, symmetric=False), "q4_0", 0,
    ),
    "gptq_8": (
        {"quant_method": "gptq", "bits": 8, "group_size": 32, "sym": True},
        partial(published.gptq, bits=8, group=32, symmetric=True), "q8_0", 0,
    ),
    "gptq_reordered": (
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": True},
        partial(published.gptq, bits=4, group=32, symmetric=True, reordered=True), "q8_0", Q8_0,
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 32}, partial(published.awq, group=32), "q5_0", 0,
    ),
    "packed": (
        {**_COMPRESSED, **_integers(4, True)},
        partial(published.packed_integers, bits=4, group=32, symmetric=True), "q4_0", 1e-3,
    ),
    "packed_in_its_group": (
        {**_COMPRESSED, "format": "mixed-precision", "config_groups": {"group_0": {
            **_integers(4, True)["config_groups"]["group_0"], "format": "pack-quantized"}}},
        partial(published.packed_integers, bits=4, group=32, symmetric=True), "q4_0", 1e-3,
    ),
    "packed_zeros": (
        {**_COMPRESSED, **_integers(4, False)},
        partial(published.packed_integers, bits=4, group=32, symmetric=False), "q5_0", 1e-3,
    ),
    "int8": (
        {**_COMPRESSED, "format": "int-quantized",
         **_groups(num_bits=8, type="int", strategy="channel", symmetric=True)},
        published.int8_rows, "q8_0", 1e-3,
    ),
    "fp8_rows": (
        {**_COMPRESSED, "format": "float-quantized", **_groups(num_bits=8, type="float", strategy="channel")},
        lambda rng, shape: published.fp8(rng, shape, "weight_scale", (1, shape[1])), "q8_0", Q8_0,
    ),
    "fp8_blocks": (
        {"quant_method": "fp8", "weight_block_size": [24, 20]},
        partial(published.fp8, scale_name="weight_scale_inv", block=(24, 20)), "q8_0", Q8_0,
    ),
    "nvfp4_of_modelopt": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4",
         **_groups(num_bits=4, type="float", group_size=16)},
        partial(published.nvfp4, names=("weight", "weight_scale_2"), divides=False, more="input_scale"),
        "q8_0", Q8_0,
    ),
    "nvfp4_packed": (
        {**_COMPRESSED, "format": "nvfp4-pack-quantized",
         **_groups(num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True)},
        partial(published.nvfp4, names=("weight_packed", "weight_global_scale"), divides=True,
                more="input_global_scale"), "q8_0", Q8_0,
    ),
    "nf4": (
        {**_BNB, "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        partial(published.bnb_4bit, kind="nf4", block=64), "q8_0", Q8_0,
    ),
    "nf4_nested": (
        {**_BNB, "_load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
        partial(published.bnb_4bit, kind="nf4", block=96, nested=7), "q8_0", Q8_0,
    ),
    "fp4": (
        {**_BNB, "load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
        partial(published.bnb_4bit, kind="fp4", block=64), "q5_0", 0.009,
    ),
    "bnb_int8": ({**_BNB, "load_in_8bit": True}, published.bnb_8bit, "q8_0", 1e-3),
    "mlx": ({"group_size": 32, "bits": 4}, partial(published.mlx, bits=4, group=32), "q4_1", 1e-6),
    "mlx_3": ({"group_size": 32, "bits": 3}, partial(published.mlx, bits=3, group=32), "q4_1", 1e-6),
    "mlx_5": ({"group_size": 32, "bits": 5}, partial(published.mlx, bits=5, group=32), "q5_1", 1e-6),
    "mlx_nvfp4": (
        {"group_size": 16, "bits": 4, "mode": "nvfp4"}, partial(published.mlx_floats, mode="nvfp4"),
        "q8_0", Q8_0,
    ),
    "mlx_mxfp8": (
        {"group_size": 32, "bits": 8, "mode": "mxfp8"}, partial(published.mlx_floats, mode="mxfp8"),
        "q8_0", Q8_0,
    ),
    "mlx_6": ({"group_size": 32, "bits": 6}, partial(published.mlx, bits=6, group=32), "q8_0", Q8_0),
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRLLM_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def folders(tmp_path, case) -> tuple[Path, Path]:
    config, make, *_ = CASES[case]
    rng = np.random.default_rng(zlib.crc32(case.encode()))
    return published.write_folder(
        tmp_path, "llama2", {"quantization_config": config}, lambda module, shape: make(rng, shape)
    )


def logits(path: Path) -> np.ndarray:
    with LayerWiseInferenceEngine(path, backend="python", cache_dtype="f32", compute="float32") as engine:
        return np.concatenate(engine.forward(texts(), all_positions=True))


@pytest.mark.parametrize("case", CASES)
def test_values_and_logits(tmp_path, case):
    stored, plain = folders(tmp_path, case)
    *_, format, far = CASES[case]
    with open_weights(stored) as weights, open_weights(plain) as floats:
        assert sorted(weights.names()) == sorted(floats.names())
        quantized = [name for name in weights.names() if "_proj." in name]
        for name in quantized:
            found = weights.tensor(name)
            one_group = case == "gptq_reordered" and found.shape[-1] == 32
            assert found.format == ("q4_0" if one_group else format)
            wanted = np.asarray(floats.tensor(name), np.float64)
            blocks = np.abs(found.dequantize() - wanted).reshape(-1, 32)
            assert (blocks.max(1) <= far * np.abs(wanted).reshape(-1, 32).max(1) + 1e-12).all()
            if not far:
                assert np.array_equal(found.dequantize(), wanted.astype(np.float32))
        assert len(quantized) == 14
    wanted = logits(plain)
    assert np.abs(logits(stored) - wanted).max() < (EXACT if far < 1e-3 else 0.05) * np.ptp(wanted)


def test_experts_of_gpt_oss_as_they_are_published(tmp_path):
    """Blocks and scales; gate and up alternate."""
    _, tensors = read_folder("gpt_oss")
    rng = np.random.default_rng(1)
    stored, plain = dict(tensors), dict(tensors)
    for name, each in tensors.items():
        if re.search(r"experts\.\w+_proj$", name):
            experts, inputs, outputs = each.shape
            blocks, scales, values = published.mxfp4_stack(rng, (experts, outputs, inputs))
            del stored[name]
            stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            plain[name] = values.swapaxes(1, 2).astype(np.float32)
    config = json.loads((DATA / "gpt_oss" / "config.json").read_text())
    for folder, each in (("stored", stored), ("plain", plain)):
        (tmp_path / folder).mkdir()
        published.save(tmp_path / folder / "model.safetensors", each)
        (tmp_path / folder / "config.json").write_text(json.dumps(config))
        config["quantization_config"] = {"quant_method": "mxfp4"}
        if folder == "stored":
            (tmp_path / "stored" / "config.json").write_text(json.dumps(config))
            del config["quantization_config"]
    wanted = logits(tmp_path / "plain")
    assert np.abs(logits(tmp_path / "stored") - wanted).max() < EXACT * np.ptp(wanted)
    with LayerWiseInferenceEngine(tmp_path / "stored", backend="python") as engine:
        experts = engine.model.layers[0].experts[0]
        assert {part: experts[part].format for part in ("gate", "up", "down")} == dict.fromkeys(
            ("gate", "up", "down"), "mxfp4"
        )
    with open_weights(tmp_path / "stored") as weights:
        assert "MXFP4, opened as mxfp4: exactly (4 matrices)" in weights.describe()


def test_experts_of_mlx_are_stacks(tmp_path):
    _, tensors = read_folder("qwen3_moe")
    rng = np.random.default_rng(2)
    stored, plain, stacks = {}, {}, {}
    for name, each in tensors.items():
        if match := re.fullmatch(r"(.*mlp)\.experts\.(\d+)\.(\w+)\.weight", name):
            made, values = published.mlx(rng, each.shape, 4, 32)
            plain[name] = values.astype(np.float32)
            for suffix, part in made.items():
                stacks.setdefault(f"{match[1]}.switch_mlp.{match[3]}.{suffix}", {})[int(match[2])] = part
        else:
            stored[name] = plain[name] = each
    stored |= {name: np.stack([parts[i] for i in sorted(parts)]) for name, parts in stacks.items()}
    config = json.loads((DATA / "qwen3_moe" / "config.json").read_text())
    for folder, each, more in (
        ("stored", stored, {"quantization": {"group_size": 32, "bits": 4}}),
        ("plain", plain, {}),
    ):
        (tmp_path / folder).mkdir()
        published.save(tmp_path / folder / "model.safetensors", each)
        (tmp_path / folder / "config.json").write_text(json.dumps(config | more))
    wanted = logits(tmp_path / "plain")
    assert np.abs(logits(tmp_path / "stored") - wanted).max() < EXACT * np.ptp(wanted)


@pytest.mark.parametrize("case", ("mlx", "mlx_nvfp4", "mlx_mxfp8"))
def test_mlx_itself_unpacks_the_same(case, tmp_path):
    mx = pytest.importorskip("mlx.core")
    rng, (config, make, *_) = np.random.default_rng(3), CASES[case]
    made = {}

    def unpacked(module, shape):
        tensors, values = make(rng, shape)
        arrays = [mx.array(tensors[name]) for name in ("weight", "scales", "biases") if name in tensors]
        made[module] = np.asarray(mx.dequantize(*arrays, **config).astype(mx.float32))
        return tensors, values

    stored, _ = published.write_folder(tmp_path, "llama2", {"quantization": config}, unpacked)
    with open_weights(stored) as weights:
        for module, wanted in made.items():
            far = np.abs(weights.tensor(f"{module}.weight").dequantize() - wanted).max()
            assert far < (1e-3 if case == "mlx" else Q8_0 * np.abs(wanted).max())


def test_matrices_are_converted_once(tmp_path, cache, capsys):
    stored, _ = folders(tmp_path, "gptq")
    logits(stored)
    (kept,) = (cache / "converted").iterdir()
    assert main(["models"]) == 0
    assert f"Converted folders: 1 in {kept.parent}, " in capsys.readouterr().out
    before = kept.stat().st_mtime_ns
    found = logits(stored)
    assert kept.stat().st_mtime_ns == before
    kept.write_bytes(kept.read_bytes()[:-1])
    assert np.array_equal(logits(stored), found)
    path = stored / "model.safetensors"
    path.touch()  # changed: another name
    logits(stored)
    assert len(list((cache / "converted").iterdir())) == 2


def test_a_budget_reads_the_converted_file(tmp_path):
    stored, _ = folders(tmp_path, "gptq")
    options = {"backend": "python", "cache_dtype": "f32", "compute": "float32", "context": 64}
    with LayerWiseInferenceEngine(stored, **options) as engine:
        wanted = engine.forward(texts()[1])
    with pytest.raises(MemoryBudgetError) as error:
        LayerWiseInferenceEngine(stored, max_memory=1, **options)
    least = int(re.search(r"at least (\d+)", str(error.value))[1])
    with LayerWiseInferenceEngine(stored, max_memory=least, **options) as engine:
        assert not engine.model.residency.whole
        assert np.array_equal(engine.forward(texts()[1]), wanted)


def test_info_says_what_it_is_opened_as(tmp_path, cache):
    stored, _ = folders(tmp_path, "awq")
    found = "\n".join(info.lines(stored))
    assert "Stored as:   AWQ, 4 bits, groups of 32, opened as q5_0: exactly (14 matrices)" in found
    assert f"converted once, into {cache / 'converted'}" in found
    assert info.facts(stored)["stored_as"]


def test_a_quantized_folder_becomes_a_gguf_file(tmp_path):
    stored, _ = folders(tmp_path, "gptq")
    wanted = logits(stored)
    tokenizer_files.write_tokenizer(stored)
    quantize(stored, tmp_path / "new.gguf", "f32")
    assert np.abs(logits(tmp_path / "new.gguf") - wanted).max() < EXACT * np.ptp(wanted)


WRONG = {
    "has quant_method 'hqq', which is not supported": {"quant_method": "hqq"},
    "'bitsandbytes' with load_in_4bit True and bnb_4bit_quant_type 'int4'": {
        "quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "int4"},
    "'bitsandbytes' with load_in_4bit None": {"quant_method": "bitsandbytes"},
    "has quant_method None": {"bits": 4},
    "'gptq' with bits 5": {"quant_method": "gptq", "bits": 5},
    "'gptq' with checkpoint_format 'marlin'": {
        "quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"},
    "'awq' with bits 4, version 'gemv'": {"quant_method": "awq", "bits": 4, "version": "GEMV"},
    "'modelopt' with quant_algo 'MIXED_PRECISION'": {
        "quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
    "'compressed-tensors' with NVFP4 in groups of 32": {
        "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
        **_groups(num_bits=4, type="float", strategy="tensor_group", group_size=32)},
    "'mlx' with mode 'mxint4'": {"quant_method": "mlx", "group_size": 32, "bits": 4, "mode": "mxint4"},
    "'mlx' with bits 4 and group_size 32": {
        "quant_method": "mlx", "group_size": 32, "bits": 4, "mode": "nvfp4"},
}  # fmt: skip


@pytest.mark.parametrize("message", WRONG)
def test_what_is_not_supported_is_named(tmp_path, message):
    config = {"quantization_config": WRONG[message]}
    stored, _ = published.write_folder(tmp_path, "llama2", config, lambda module, shape: None)
    with pytest.raises(ModelFileError, match=rf"config.json: key quantization_config .*{re.escape(message)}"):
        open_weights(stored)
    with pytest.raises(ModelFileError, match=re.escape(message)):
        next(info.lines(stored))


def test_tensors_that_do_not_fit_together(tmp_path):
    def make(module, shape):
        tensors, values = published.gptq(np.random.default_rng(0), shape, 4, 32, symmetric=True)
        return {**tensors, "scales": tensors["scales"][:, :-1]}, values

    config = {"quantization_config": CASES["gptq"][0]}
    stored, _ = published.write_folder(tmp_path, "llama2", config, make)
    with pytest.raises(ModelFileError, match=r"proj\.scales has shape \(\d, \d+\), expected shape"):
        open_weights(stored)


@pytest.mark.parametrize(
    ("case", "suffix", "change", "message"),
    (
        ("nf4", "weight.absmax", lambda each: each[1:], r"weight.absmax has shape \(\d+,\), expected shape"),
        ("nf4", "weight", lambda each: each[1:], r"weight has shape .*, expected \d+ bytes for a matrix"),
        (
            "nf4",
            "weight.quant_state.bitsandbytes__nf4",
            lambda each: each[1:],
            "cannot be read: .*expected JSON",
        ),
        ("nf4_nested", "weight.nested_absmax", lambda each: each[1:], "nested_absmax has shape"),
        ("bnb_int8", "SCB", lambda each: each[1:], "SCB has shape"),
        ("bnb_int8", "weight_format", lambda each: each + 1, "weight_format has value 1, expected 0"),
        ("nvfp4_packed", "weight_scale", lambda each: each[1:], "weight_scale has shape"),
        (
            "nvfp4_packed",
            "weight_scale",
            lambda each: each.astype(np.float32),
            "has dtype float32, expected FP8",
        ),
        ("nvfp4_of_modelopt", "weight_scale_2", lambda each: each.reshape(1, 1), "expected one number"),
    ),
)
def test_broken_tensors_of_codes_with_tables(tmp_path, case, suffix, change, message):
    config, make, *_ = CASES[case]

    def broken(module, shape):
        tensors, values = make(np.random.default_rng(0), shape)
        return {**tensors, suffix: change(tensors[suffix])}, values

    stored, _ = published.write_folder(tmp_path, "llama2", {"quantization_config": config}, broken)
    with pytest.raises(ModelFileError, match=message):
        open_weights(stored)


def test_codes_that_are_not_symmetric_after_all(tmp_path):
    def make(module, shape):
        return published.gptq(np.random.default_rng(0), shape, 4, 32, symmetric=False)

    config = {"quantization_config": CASES["gptq"][0]}
    stored, _ = published.write_folder(tmp_path, "llama2", config, make)
    with pytest.raises(ModelFileError, match="has codes from -1.* to .*, too many for q4_0"):
        logits(stored)
