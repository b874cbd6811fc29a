"""Make tests/data/tiny_models: tiny models of every architecture and their logits, by transformers.

    pip install torch==2.13.0 transformers==5.23.0
    python -m tests.references.tiny_models            # writes the folders and logits.npz
    python -m tests.references.tiny_models --add      # writes those that are missing
    python -m tests.references.tiny_models --check    # makes all of it again and compares

Weights are made of raw random bits, the same on every machine, and are of so few bits that float32, float16
and bfloat16 hold them exactly: one reference serves however a folder is stored. They are large enough for
every part of a model to show in its logits.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Kind
from safetensors import safe_open

from airllm.formats import FORMATS
from tests.support.models import tiny_gguf, tiny_gguf_names, tiny_gguf_tensors, tiny_models
from tests.support.models.tiny_models import DATA, FOLDERS, K_CONFIG, K_MODEL, LOGITS, VOCABULARY

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": VOCABULARY - 1,
    "pad_token_id": None,
}
SHARDED = {"llama3": "40KB", "mixtral": "30KB"}
CLOSE = 1e-5  # of the logits' range: what another machine's float32 may differ by


def model_of(name: str) -> torch.nn.Module:
    """The model with its random weights, float32."""
    kind, tiny = tiny_models.DECLARED[name]
    values = {**SIZES, **tiny.values}
    if text := tiny.values.get("text_config"):  # of a model that sees images too
        values = {
            "tie_word_embeddings": SIZES["tie_word_embeddings"],
            **tiny.values,
            "text_config": SIZES | text,
        }
    # copies: a configuration writes into the dictionaries that it is given, which models share
    model = _empty(transformers.CONFIG_MAPPING[kind](**copy.deepcopy(values)))
    with torch.no_grad():
        kept = ("e_score_correction_bias", "layer_scalar", "expert_bias")
        biases = ((n, b) for n, b in model.named_buffers() if n.endswith(kept))
        for each, parameter in (*model.named_parameters(), *biases):
            less_one = kind in tiny_models.NORMS_LESS_ONE and not each.endswith(tiny_models.WHOLE_NORM)
            found = weight(f"{name}.{each}", tuple(parameter.shape), less_one)
            parameter.copy_(torch.from_numpy(found))
    return model


def _empty(config: Any) -> Any:
    seeing = hasattr(config, "text_config")
    auto = transformers.AutoModelForImageTextToText if seeing else transformers.AutoModelForCausalLM
    config._attn_implementation = "eager"  # the only one that has soft caps
    return auto.from_config(config, attn_implementation="eager").to(torch.float32).eval()


def weight(name: str, shape: tuple[int, ...], less_one: bool) -> np.ndarray:
    """Random numbers of 8 bits, of a size that keeps hidden states near 1 and scores of attention apart."""
    bits = tiny_models.random_bits(name, int(np.prod(shape))).view(np.int8).reshape(shape)
    if re.search(r"norm(_\w)?\.weight$|[._]scale$|\.layer_scalar$", name):
        return (bits // 4).astype(np.float32) / 128 + (0 if less_one else 1)
    if name.endswith("bias"):
        return bits.astype(np.float32) / 128
    strong = (
        "q_proj",
        "k_proj",
        "q_b_proj",
        "kv_b_proj",
        "qkv_proj",
        "mlp.gate.weight",
        "mixer.gate.weight",
        "router.proj",
        "embed",
    )
    gain = 2 if any(part in name for part in strong) else 1
    scale = 2.0 ** round(np.log2(gain * np.sqrt(3 / shape[-1])))
    return bits.astype(np.float32) / 128 * np.float32(scale)


def logits_of(model: Any) -> np.ndarray:
    """Of all tokens of all texts; transformers' own decoding with its cache must give the same."""
    found = []
    for text in tiny_models.texts():
        with torch.no_grad():
            found.append(whole := model(torch.tensor([text])).logits[0].numpy())
            compare("transformers with its cache", _token_by_token(model, text), whole[-4:])
    return np.concatenate(found)


def _token_by_token(model: Any, text: list[int]) -> np.ndarray:
    start = max(len(text) - 4, 1)
    out = model(torch.tensor([text[:start]]), use_cache=True)
    rows = [out.logits[0, -1:].numpy()]
    for token in text[start:]:
        out = model(torch.tensor([[token]]), past_key_values=out.past_key_values, use_cache=True)
        rows.append(out.logits[0].numpy())
    return np.concatenate(rows)[-4:]


# --------------------------------------------------------------------------------- blocks of quantized values


def in_blocks(name: str) -> Any:
    """The model with the values that its GGUF file in block formats holds."""
    model = model_of(name)
    config, tensors = tiny_models.read_folder(name)
    for each, values in tiny_gguf_tensors.apart(config, tensors).items():
        if not tiny_gguf_names.is_text(each):
            continue
        kind = tiny_gguf.block_kind(tiny_gguf_names.gguf_name(config, each), values.shape)
        if kind != Kind.F32:
            values[:] = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
    return _loaded(model, tensors)


def _loaded(model: Any, tensors: dict[str, np.ndarray]) -> Any:
    """With these tensors, named as in a folder; transformers has experts as stacks of its own."""
    with tempfile.TemporaryDirectory() as folder:
        from safetensors.numpy import save_file

        save_file(tensors, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        model.config.dtype = "float32"
        model.config.save_pretrained(folder)
        return type(model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def k_model() -> Any:
    model = _empty(transformers.LlamaConfig(**{**SIZES, **K_CONFIG}))
    names = {"token_embd": "embed_tokens", "attn_q": "layers.0.self_attn.q_proj",
             "attn_k": "layers.0.self_attn.k_proj", "attn_v": "layers.0.self_attn.v_proj",
             "attn_output": "layers.0.self_attn.o_proj", "ffn_gate": "layers.0.mlp.gate_proj",
             "ffn_up": "layers.0.mlp.up_proj", "ffn_down": "layers.0.mlp.down_proj"}  # fmt: skip
    heads = {"attn_q": K_CONFIG["num_attention_heads"], "attn_k": K_CONFIG["num_key_value_heads"]}
    norms = ("norm", "layers.0.input_layernorm", "layers.0.post_attention_layernorm")
    tensors = {f"model.{each}.weight": np.ones(256, np.float32) for each in norms}
    for name, form, data in tiny_gguf.k_tensors():
        which = name.split(".")[-2]
        values = gguf.quants.dequantize(data, Kind(FORMATS[form].ggml_type))
        if which in heads:  # from neighbouring pairs to halves
            values = values.reshape(heads[which], -1, 2, 256).swapaxes(1, 2).reshape(values.shape)
        tensors[f"model.{names[which]}.weight"] = np.ascontiguousarray(values)
    return _loaded(model, tensors)


# --------------------------------------------------------------------------------------------- make and check


def save(name: str, folder: Path) -> None:
    model, dtype = model_of(name), tiny_models.DECLARED[name][1].dtype
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=SHARDED.get(name, "1GB"))
    (folder / "generation_config.json").unlink(missing_ok=True)


def all_logits() -> dict[str, np.ndarray]:
    return _logits_of(FOLDERS) | {f"{K_MODEL}.blocks": logits_of(k_model())}


def _logits_of(names: Iterable[str]) -> dict[str, np.ndarray]:
    found = {f"{name}.float": logits_of(model_of(name)) for name in names}
    return found | {
        f"{name}.blocks": logits_of(in_blocks(name)) for name in names if name in tiny_models.AS_GGUF
    }


def make() -> None:
    shutil.rmtree(DATA, ignore_errors=True)
    for name in FOLDERS:
        save(name, DATA / name)
    np.savez_compressed(LOGITS, **all_logits())


def add() -> None:
    """Make what is missing only."""
    names = [name for name in FOLDERS if not (DATA / name).is_dir()]
    for name in names:
        save(name, DATA / name)
    with np.load(LOGITS) as kept:
        np.savez_compressed(LOGITS, **dict(kept) | _logits_of(names))


def check() -> None:
    """Raises where what is kept is not what is made now."""
    with tempfile.TemporaryDirectory() as scratch:
        for name in FOLDERS:
            save(name, folder := Path(scratch) / name)
            same_folder(folder, DATA / name)
    with np.load(LOGITS) as kept:
        found = all_logits()
        if set(kept) != set(found):
            raise ValueError(f"{LOGITS} has {sorted(kept)}, expected {sorted(found)}")
        for name, logits in found.items():
            compare(f"{LOGITS.name}: {name}", kept[name], logits)


def same_folder(made: Path, kept: Path) -> None:
    if (names := {path.name for path in made.iterdir()}) != {path.name for path in kept.iterdir()}:
        raise ValueError(f"{kept} has other files than {sorted(names)}")
    for path in made.glob("*.json"):
        if json.loads(path.read_text()) != json.loads((kept / path.name).read_text()):
            raise ValueError(f"{kept / path.name} is not what transformers writes: {path.read_text()}")
    for path in made.glob("*.safetensors"):
        with safe_open(path, "pt") as new, safe_open(kept / path.name, "pt") as old:
            for name in {*new.keys(), *old.keys()}:
                if not torch.equal(new.get_tensor(name), old.get_tensor(name)):
                    raise ValueError(f"{kept / path.name}: tensor {name} differs")


def compare(what: str, kept: np.ndarray, made: np.ndarray) -> None:
    if kept.shape != made.shape:
        raise ValueError(f"{what} has shape {kept.shape}, expected {made.shape}")
    far = float(np.abs(kept - made).max() / np.ptp(made))
    if not far < CLOSE:
        raise ValueError(f"{what} differs by {far:.1e} of the logits' range, expected less than {CLOSE}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--add", action="store_true", help="write what is missing")
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    given = parser.parse_args()
    from tests.references import tiny_encoders as encoders  # which imports this module

    for each in (sys.modules[__name__], encoders):
        each.check() if given.check else each.add() if given.add else each.make()


if __name__ == "__main__":
    sys.exit(main())
