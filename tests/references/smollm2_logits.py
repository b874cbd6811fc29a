"""Make tests/data/smollm2_logits.npz: what transformers computes with SmolLM2's dequantized weights.

    pip install torch==2.13.0 transformers==5.23.0
    python -m tests.references.smollm2_logits            # writes the file
    python -m tests.references.smollm2_logits --check    # compares it, and the engine, with all logits

The file has the most likely tokens of each position with their log-probabilities, and all of two positions:
all logits would be 50 MB. Here they are all at hand, and so is the whole Kullback-Leibler divergence.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

from airllm.files import smollm2
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.text.open_tokenizer import open_tokenizer
from tests.support.models.smollm2 import KEPT, REFERENCE, TOKENS, WHOLE, divergence, log_probabilities

TEXT = """\
The water cycle is the path that water follows as it moves around the Earth. When the sun heats the \
oceans, lakes and rivers, some of the water evaporates and becomes water vapor in the air. Plants \
also release water vapor through their leaves, a process called transpiration. As the vapor rises, \
it cools and condenses into tiny droplets that form clouds. When the droplets grow large enough, \
they fall back to the ground as rain, snow, sleet or hail. This is called precipitation. Some of the \
rain soaks into the soil and becomes groundwater, and some of it runs off the land into streams and \
rivers, which carry it back to the ocean. Then the cycle begins again.

Photosynthesis is the process by which green plants use sunlight to make their own food. The leaves \
of a plant contain chlorophyll, a green pigment that absorbs light energy. The plant takes in carbon \
dioxide from the air and water from the soil, and uses the energy of the light to turn them into \
glucose and oxygen. The glucose is used for growth and energy, and the oxygen is released into the \
air. Without photosynthesis, there would be very little oxygen in the atmosphere, and most living \
things could not survive. This is why forests are sometimes called the lungs of the planet."""
_NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_HEADS = {"attn_q": 9, "attn_k": 3}
_NOISE = 1e-3  # of log-probabilities, from one processor to the next


def weights(path: Path) -> dict[str, torch.Tensor]:
    """The file's weights by transformers' names, as the package gguf dequantizes them."""
    found = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        part = tensor.name.split(".")[-2]
        if part in _HEADS:  # from neighbouring pairs to halves
            values = values.reshape(_HEADS[part], -1, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        found[_name(tensor.name, part)] = torch.tensor(values)
    return found | {"lm_head.weight": found["model.embed_tokens.weight"]}


def _name(name: str, part: str) -> str:
    whole = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}
    return whole.get(part) or f"model.layers.{name.split('.')[1]}.{_NAMES[part]}.weight"


def all_logits(path: Path, ids: list[int]) -> np.ndarray:
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=8192,
        rms_norm_eps=float(np.float32(1e-5)), tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    )  # fmt: skip
    with torch.device("meta"):
        model: Any = transformers.LlamaForCausalLM(config)
    model.load_state_dict(weights(path), assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # has no weights, and was made of nothing
    with torch.no_grad():
        return model.eval()(torch.tensor([ids])).logits[0].numpy()


def kept(ids: list[int], logits: np.ndarray) -> dict[str, np.ndarray]:
    exact = log_probabilities(logits)
    best = np.argsort(-exact, axis=-1, kind="stable")[:, :KEPT]
    return {
        "ids": np.array(ids, np.uint16),
        "best": best.astype(np.uint16),
        "log_probabilities": np.take_along_axis(exact, best, -1).astype(np.float32),
        "whole": exact[list(WHOLE)].astype(np.float32),
    }


def check(path: Path, made: dict[str, np.ndarray], logits: np.ndarray) -> None:
    """Raises where the file is not what is made now, or the engine is further off than its tests allow.

    Tokens of nearly one probability change places from one processor to the next: the file's tokens have its
    probabilities, and no other token is more likely than the last of them.
    """
    exact = log_probabilities(logits)
    with np.load(REFERENCE) as old:
        its_own = np.take_along_axis(exact, old["best"].astype(np.int64), -1)
        compared = {
            "ids": (made["ids"], 0.0),
            "log_probabilities": (its_own, _NOISE),
            "whole": (made["whole"], _NOISE),
        }
        for name, (values, most) in compared.items():
            if not np.allclose(old[name], values, rtol=0, atol=most):
                raise ValueError(f"{REFERENCE.name}: {name} differs from what is made now")
        if not np.all(made["log_probabilities"][:, -1] <= its_own.min(-1) + _NOISE):
            raise ValueError(f"{REFERENCE.name}: best lacks a token that is among the most likely now")
    for compute, most in (("float32", 1e-6), ("stored", 0.0033)):
        with LayerWiseInferenceEngine(path, compute=compute) as engine:
            mean = divergence(logits, engine.forward(made["ids"].tolist(), all_positions=True)).mean()
        print(f"mean KL divergence of compute={compute!r} from transformers: {mean:.2e}")
        if not mean < most:
            raise ValueError(f"compute={compute!r} has mean KL divergence {mean:.2e}, expected below {most}")


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    wanted = parser.parse_args()
    path = smollm2.fetch()
    ids = open_tokenizer(path).encode(TEXT)[:TOKENS]
    assert len(ids) == TOKENS
    logits = all_logits(path, ids)
    made = kept(ids, logits)
    if wanted.check:
        check(path, made, logits)
    else:
        np.savez_compressed(REFERENCE, **made)


if __name__ == "__main__":
    sys.exit(main())
