"""Make tests/data/tiny_models: tiny models of every architecture and their logits, by transformers.

    pip install torch==2.13.0 transformers==5.23.0
    python -m tests.references.tiny_models            # writes the folders and logits.npz
    python -m tests.references.tiny_models --check    # makes all of it again and compares

Weights are made of raw random bits, the same on every machine, and are of so few bits that float32, float16
and bfloat16 hold them exactly: one reference serves however a folder is stored. They are large enough for
every part of a model to show in its logits.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Kind
from safetensors import safe_open

from airllm.formats import FORMATS
from tests import tiny_gguf, tiny_models
from tests.tiny_models import DATA, K_CONFIG, K_MODEL, LOGITS, SHORT, VOCABULARY

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
HEADS_16 = {"head_dim": 16}
LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 32}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {"rope_type": "longrope", "rope_theta": 100.0, "original_max_position_embeddings": SHORT,
            "short_factor": [1.0, 1.5, 1.0, 1.25, 2.0, 1.0], "long_factor": [1.0, 2.0, 3.0, 4.0, 6.0, 8.0],
            "partial_rotary_factor": 0.75}  # fmt: skip
GEMMA3_ROPES = {"full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}  # fmt: skip
MULTIPLIERS = {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.125,
               "logits_scaling": 8.0}  # fmt: skip
SHARED_EXPERT = {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64}
TEMPERATURE = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
               "original_max_position_embeddings": 16, "mscale": 1.0, "mscale_all_dim": 1.0,
               "llama_4_scaling_beta": 0.5}  # fmt: skip
PIXTRAL = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 1,
           "head_dim": 16, "patch_size": 2, "image_size": 8}  # fmt: skip
# name -> transformers' class, dtype in the folder, configuration
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama2": ("Llama", "float32", {"num_attention_heads": 2, "num_hidden_layers": 2}),
    "llama3": ("Llama", "bfloat16", {**HEADS_16, "rope_parameters": LLAMA3_ROPE}),
    "llama_linear": ("Llama", "float16", {
        "head_dim": 32, "num_hidden_layers": 2, "attention_bias": True,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0}}),
    "smollm2": ("Llama", "bfloat16", {"hidden_size": 64, "tie_word_embeddings": True, "num_hidden_layers": 2,
                                      "num_attention_heads": 2, "num_key_value_heads": 1,
                                      "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}}),
    "mistral": ("Mistral", "float16", {**HEADS_16, "sliding_window": 8}),
    "qwen2": ("Qwen2", "bfloat16", {"num_attention_heads": 2, "num_key_value_heads": 1,
                                    "tie_word_embeddings": True}),
    "qwen2_window": ("Qwen2", "float16", {
        "num_attention_heads": 2, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1,
        "rope_parameters": YARN}),
    "qwen3": ("Qwen3", "bfloat16", {"head_dim": 32, "num_hidden_layers": 2, "rope_parameters": YARN}),
    "gemma2": ("Gemma2", "bfloat16", {
        **HEADS_16, "sliding_window": 8, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0, "tie_word_embeddings": True}),
    "gemma3": ("Gemma3", "bfloat16", {
        **HEADS_16, "num_hidden_layers": 7, "intermediate_size": 32, "sliding_window": 8,
        "query_pre_attn_scalar": 16, "tie_word_embeddings": True, "rope_parameters": GEMMA3_ROPES}),
    "phi3": ("Phi3", "bfloat16", {"num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": 12,
                                  "num_hidden_layers": 2,
                                  "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}),
    "phi3_long": ("Phi3", "float16", {
        "num_attention_heads": 2, "num_hidden_layers": 2, "original_max_position_embeddings": SHORT,
        "rope_parameters": LONGROPE}),
    "mixtral": ("Mixtral", "bfloat16", {"num_attention_heads": 2, "num_local_experts": 4,
                                        "num_hidden_layers": 2, "intermediate_size": 32,
                                        "num_experts_per_tok": 2, "sliding_window": None}),
    "qwen3_moe": ("Qwen3Moe", "bfloat16", {
        **HEADS_16, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
        "num_hidden_layers": 2, "norm_topk_prob": True}),
    "qwen3_moe_some": ("Qwen3Moe", "float16", {
        **HEADS_16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "num_hidden_layers": 4, "mlp_only_layers": [1], "decoder_sparse_step": 2, "norm_topk_prob": False}),
    "granite": ("Granite", "bfloat16", {**MULTIPLIERS, "num_hidden_layers": 2}),
    "granite_tied": ("Granite", "float16", {
        **MULTIPLIERS, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2,
        "attention_bias": True, "tie_word_embeddings": True}),
    "smollm3": ("SmolLM3", "bfloat16", {
        "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 5, "intermediate_size": 32,
        "tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}),
    "smollm3_window": ("SmolLM3", "float16", {
        "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 32, "attention_bias": True,
        "no_rope_layers": [0, 1, 0], "use_sliding_window": True, "sliding_window": 8}),
    "olmo2": ("Olmo2", "bfloat16", {"hidden_size": 64, "num_hidden_layers": 2,
                                    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    "olmo3": ("Olmo3", "float16", {
        "num_hidden_layers": 4, "intermediate_size": 32, "sliding_window": 8,
        "rope_parameters": {"full_attention": YARN,
                            "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}}}),
    "qwen2_moe": ("Qwen2Moe", "bfloat16", {
        **SHARED_EXPERT, "num_attention_heads": 2, "num_key_value_heads": 1, "num_experts": 4,
        "num_hidden_layers": 2}),
    "qwen2_moe_some": ("Qwen2Moe", "float16", {
        **SHARED_EXPERT, "num_experts": 3, "num_hidden_layers": 4, "mlp_only_layers": [1],
        "decoder_sparse_step": 2, "norm_topk_prob": True, "qkv_bias": False, "use_sliding_window": True,
        "sliding_window": 8}),
    "qwen2_5_vl": ("Qwen2_5_VL", "bfloat16", {
        "text_config": {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2,
                        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0,
                                            "mrope_section": [4, 2, 2]}},
        "vision_config": {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 1,
                          "patch_size": 2, "out_hidden_size": 32, "fullatt_block_indexes": [0]}}),
    "qwen3_vl": ("Qwen3VL", "bfloat16", {
        "text_config": {**HEADS_16, "num_hidden_layers": 2,
                        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0,
                                            "mrope_interleaved": True, "mrope_section": [3, 3, 2]}},
        "vision_config": {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 1,
                          "patch_size": 2, "out_hidden_size": 32, "num_position_embeddings": 16,
                          "deepstack_visual_indexes": [0]}}),
    "seed_oss": ("SeedOss", "bfloat16", {**HEADS_16, "num_hidden_layers": 2, "attention_bias": True}),
    "seed_oss_bias": ("SeedOss", "float16", {
        "num_hidden_layers": 2, "head_dim": None, "num_attention_heads": 2, "attention_bias": False,
        "attention_out_bias": True, "tie_word_embeddings": True}),
    "ministral3": ("Ministral3", "bfloat16", {
        **HEADS_16, "num_hidden_layers": 2, "tie_word_embeddings": True, "rope_parameters": TEMPERATURE}),
    "mistral3": ("Mistral3", "bfloat16", {
        "text_config": {"model_type": "ministral3", **HEADS_16, "num_hidden_layers": 2,
                        "rope_parameters": {**TEMPERATURE, "mscale_all_dim": 0.5}},
        "vision_config": PIXTRAL}),
    "mistral_small": ("Mistral3", "float16", {
        "text_config": {"model_type": "mistral", **HEADS_16, "num_hidden_layers": 2, "sliding_window": None,
                        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
        "vision_config": PIXTRAL}),
    "gemma": ("Gemma", "bfloat16", {
        **HEADS_16, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2,
        "tie_word_embeddings": True}),
}  # fmt: skip
SEEING = ("Qwen2_5_VL", "Qwen3VL", "Mistral3")  # they see images too; their text part has a config of its own
FOLDERS = (*tiny_models.FOLDERS, *tiny_models.NEW_FOLDERS)
AS_GGUF = (*tiny_models.AS_GGUF, *tiny_models.NEW_AS_GGUF)
SHARDED = {"llama3": "40KB", "mixtral": "30KB"}
CLOSE = 1e-5  # of the logits' range: what another machine's float32 may differ by


def model_of(name: str) -> torch.nn.Module:
    """The model with its random weights, float32."""
    kind, _, values = MODELS[name]
    config = getattr(transformers, f"{kind}TextConfig" if kind == "Gemma3" else f"{kind}Config")
    if kind in SEEING:
        text = {**SIZES, **values["text_config"]}
        values = {"tie_word_embeddings": text["tie_word_embeddings"], **values, "text_config": text}
    else:
        values = {**SIZES, **values}
    model = _empty(kind, config(**values))
    gemma = kind.startswith("Gemma")
    with torch.no_grad():
        for each, parameter in model.named_parameters():
            found = weight(f"{name}.{each}", tuple(parameter.shape), gemma)
            parameter.copy_(torch.from_numpy(found))
    return model


def _empty(kind: str, config: Any) -> Any:
    model = getattr(transformers, f"{kind}For{'ConditionalGeneration' if kind in SEEING else 'CausalLM'}")
    config._attn_implementation = "eager"  # the only one that has soft caps
    return model(config).to(torch.float32).eval()


def weight(name: str, shape: tuple[int, ...], gemma: bool) -> np.ndarray:
    """Random numbers of 8 bits, of a size that keeps hidden states near 1 and scores of attention apart."""
    bits = tiny_models.random_bits(name, int(np.prod(shape))).view(np.int8).reshape(shape)
    if name.endswith("norm.weight"):
        return (bits // 4).astype(np.float32) / 128 + (0 if gemma else 1)
    if name.endswith("bias"):
        return bits.astype(np.float32) / 128
    gain = (
        2 if any(part in name for part in ("q_proj", "k_proj", "qkv_proj", "mlp.gate.weight", "embed")) else 1
    )
    scale = 2.0 ** round(np.log2(gain * np.sqrt(3 / shape[-1])))
    return bits.astype(np.float32) / 128 * np.float32(scale)


def logits_of(model: Any) -> np.ndarray:
    """Of all tokens of all texts; transformers' own decoding with its cache must give the same."""
    found = []
    for text in tiny_models.texts():
        with torch.no_grad():
            found.append(whole := model(torch.tensor([text])).logits[0].numpy())
            _compare("transformers with its cache", _token_by_token(model, text), whole[-4:])
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
    for each, values in tensors.items():
        if not tiny_gguf.is_text(each):
            continue
        kind = tiny_gguf.block_kind(tiny_gguf.gguf_name(config, each), values.shape)
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
    model = _empty("Llama", transformers.LlamaConfig(**{**SIZES, **K_CONFIG}))
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
    model, (_, dtype, _) = model_of(name), MODELS[name]
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=SHARDED.get(name, "1GB"))
    (folder / "generation_config.json").unlink(missing_ok=True)


def all_logits() -> dict[str, np.ndarray]:
    found = {f"{name}.float": logits_of(model_of(name)) for name in FOLDERS}
    found |= {f"{name}.blocks": logits_of(in_blocks(name)) for name in AS_GGUF}
    return found | {f"{K_MODEL}.blocks": logits_of(k_model())}


def make() -> None:
    shutil.rmtree(DATA, ignore_errors=True)
    for name in FOLDERS:
        save(name, DATA / name)
    np.savez_compressed(LOGITS, **all_logits())


def check() -> None:
    """Raises where what is kept is not what is made now."""
    with tempfile.TemporaryDirectory() as scratch:
        for name in FOLDERS:
            save(name, folder := Path(scratch) / name)
            _same_folder(folder, DATA / name)
    with np.load(LOGITS) as kept:
        found = all_logits()
        if set(kept) != set(found):
            raise ValueError(f"{LOGITS} has {sorted(kept)}, expected {sorted(found)}")
        for name, logits in found.items():
            _compare(f"{LOGITS.name}: {name}", kept[name], logits)


def _same_folder(made: Path, kept: Path) -> None:
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


def _compare(what: str, kept: np.ndarray, made: np.ndarray) -> None:
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
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    check() if parser.parse_args().check else make()


if __name__ == "__main__":
    sys.exit(main())
