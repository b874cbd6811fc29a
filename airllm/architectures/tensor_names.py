"""One name for each tensor of a model, and its names in GGUF files and Hugging Face folders.

"layers.3.attention.q" is `blk.3.attn_q.weight` in a GGUF file and `model.layers.3.self_attn.q_proj.weight` in
a folder. Most folders store experts one by one; GGUF files stack them. "layers.3.experts.7.up" is a tensor in
a folder, and a part of `blk.3.ffn_up_exps.weight` in a GGUF file. Folders with stacks declare it (`Stacks`).
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from airllm.architectures.declaration import Architecture
from airllm.architectures.families import all_architectures, architecture_named
from airllm.architectures.model_config import ModelConfig
from airllm.architectures.read_folder import architecture_of_folder
from airllm.files.gguf import GgufFile
from airllm.files.weight_file import ModelFileError, Span, Stored, WeightFile
from airllm.formats import Quantized

# our name -> GGUF's, the folder's; {layer} and {expert} are numbers
_WHOLE = {
    "token_embedding": ("token_embd.weight", "embed_tokens.weight"),
    "output_norm": ("output_norm.weight", "norm.weight"),
    "output_norm_bias": ("output_norm.bias", "norm.bias"),
    "output": ("output.weight", "lm_head.weight"),
    "layer_embedding": ("per_layer_token_embd.weight", "embed_tokens_per_layer.weight"),
    "layer_projection": ("per_layer_model_proj.weight", "per_layer_model_projection.weight"),
    "layer_projection_norm": ("per_layer_proj_norm.weight", "per_layer_projection_norm.weight"),
    "position_embedding": ("position_embd.weight", "embeddings.position_embeddings.weight"),
    "type_embedding": ("token_types.weight", "embeddings.token_type_embeddings.weight"),
    "embedding_norm": ("token_embd_norm.weight", "embeddings.LayerNorm.weight"),
    "embedding_norm_bias": ("token_embd_norm.bias", "embeddings.LayerNorm.bias"),
    "rope_factors": ("rope_freqs.weight", ""),
    "rope_factors_long": ("rope_factors_long.weight", ""),
    "rope_factors_short": ("rope_factors_short.weight", ""),
}
_LAYER = {
    "attention.norm": ("attn_norm.weight", "input_layernorm.weight"),
    "attention.norm_bias": ("attn_norm.bias", "input_layernorm.bias"),
    "attention.q": ("attn_q.weight", "self_attn.q_proj.weight"),
    "attention.k": ("attn_k.weight", "self_attn.k_proj.weight"),
    "attention.v": ("attn_v.weight", "self_attn.v_proj.weight"),
    "attention.qkv": ("attn_qkv.weight", "self_attn.qkv_proj.weight"),
    "attention.q_bias": ("attn_q.bias", "self_attn.q_proj.bias"),
    "attention.k_bias": ("attn_k.bias", "self_attn.k_proj.bias"),
    "attention.v_bias": ("attn_v.bias", "self_attn.v_proj.bias"),
    "attention.q_norm": ("attn_q_norm.weight", "self_attn.q_norm.weight"),
    "attention.k_norm": ("attn_k_norm.weight", "self_attn.k_norm.weight"),
    "attention.q_a": ("attn_q_a.weight", "self_attn.q_a_proj.weight"),
    "attention.q_a_norm": ("attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight"),
    "attention.q_b": ("attn_q_b.weight", "self_attn.q_b_proj.weight"),
    "attention.kv_a": ("attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight"),
    "attention.kv_a_norm": ("attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight"),
    "attention.kv_b": ("attn_kv_b.weight", "self_attn.kv_b_proj.weight"),
    "attention.k_b": ("attn_k_b.weight", ""),
    "attention.v_b": ("attn_v_b.weight", ""),
    "attention.output": ("attn_output.weight", "self_attn.o_proj.weight"),
    "attention.output_bias": ("attn_output.bias", "self_attn.o_proj.bias"),
    "attention.sinks": ("attn_sinks.weight", "self_attn.sinks"),
    "attention.post_norm": ("post_attention_norm.weight", "post_attention_layernorm.weight"),
    "attention.post_norm_bias": ("attn_output_norm.bias", "post_attention_layernorm.bias"),
    "short_conv.in": ("shortconv.in_proj.weight", "conv.in_proj.weight"),
    "short_conv.filter": ("shortconv.conv.weight", "conv.conv.weight"),
    "short_conv.output": ("shortconv.out_proj.weight", "conv.out_proj.weight"),
    "delta.output": ("ssm_out.weight", "linear_attn.out_proj.weight"),
    "delta.qkv": ("attn_qkv.weight", "linear_attn.in_proj_qkv.weight"),
    "delta.gate": ("attn_gate.weight", "linear_attn.in_proj_z.weight"),
    "delta.qkvz": ("ssm_in.weight", "linear_attn.in_proj_qkvz.weight"),
    "delta.rate": ("ssm_beta.weight", "linear_attn.in_proj_b.weight"),
    "delta.step": ("ssm_alpha.weight", "linear_attn.in_proj_a.weight"),
    "delta.rates": ("ssm_ba.weight", "linear_attn.in_proj_ba.weight"),
    "delta.filter": ("ssm_conv1d.weight", "linear_attn.conv1d.weight"),
    "delta.decay": ("ssm_a", ""),
    "delta.decay_log": ("", "linear_attn.A_log"),
    "delta.step_bias": ("ssm_dt.bias", "linear_attn.dt_bias"),
    "delta.head_scale": ("ssm_norm.weight", "linear_attn.norm.weight"),
    "mamba.in": ("ssm_in.weight", "mamba.in_proj.weight"),
    "mamba.filter": ("ssm_conv1d.weight", "mamba.conv1d.weight"),
    "mamba.filter_bias": ("ssm_conv1d.bias", "mamba.conv1d.bias"),
    "mamba.step_bias": ("ssm_dt.bias", "mamba.dt_bias"),
    "mamba.decay": ("ssm_a", ""),
    "mamba.decay_log": ("", "mamba.A_log"),
    "mamba.skip": ("ssm_d", "mamba.D"),
    "mamba.scale": ("ssm_norm.weight", "mamba.norm.weight"),
    "mamba.output": ("ssm_out.weight", "mamba.out_proj.weight"),
    "feed_forward.norm": ("ffn_norm.weight", "post_attention_layernorm.weight"),
    "feed_forward.norm_bias": ("ffn_norm.bias", "post_attention_layernorm.bias"),
    "feed_forward.gate": ("ffn_gate.weight", "mlp.gate_proj.weight"),
    "feed_forward.up": ("ffn_up.weight", "mlp.up_proj.weight"),
    "feed_forward.gate_up": ("ffn_up.weight", "mlp.gate_up_proj.weight"),
    "feed_forward.down": ("ffn_down.weight", "mlp.down_proj.weight"),
    "feed_forward.gate_bias": ("ffn_gate.bias", "mlp.gate_proj.bias"),
    "feed_forward.up_bias": ("ffn_up.bias", "mlp.up_proj.bias"),
    "feed_forward.down_bias": ("ffn_down.bias", "mlp.down_proj.bias"),
    "feed_forward.post_norm": ("post_ffw_norm.weight", "post_feedforward_layernorm.weight"),
    "feed_forward.post_norm_bias": ("layer_output_norm.bias", "post_feedforward_layernorm.bias"),
    "feed_forward.dense_norm": ("post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight"),
    "experts.norm": ("pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight"),
    "experts.post_norm": ("post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight"),
    "experts.router": ("ffn_gate_inp.weight", "mlp.gate.weight"),
    "experts.router_norm": ("ffn_gate_inp.scale", "router.scale"),
    "experts.scales": ("ffn_down_exps.scale", "router.per_expert_scale"),
    "experts.router_bias": ("ffn_gate_inp.bias", "mlp.gate.bias"),
    "experts.selection_bias": ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
    "experts.latent_in": ("ffn_latent_down.weight", ""),
    "experts.latent_out": ("ffn_latent_up.weight", ""),
    "experts.gate": ("ffn_gate_exps.weight", "mlp.experts.{expert}.gate_proj.weight"),
    "experts.up": ("ffn_up_exps.weight", "mlp.experts.{expert}.up_proj.weight"),
    "experts.down": ("ffn_down_exps.weight", "mlp.experts.{expert}.down_proj.weight"),
    "experts.gate_bias": ("ffn_gate_exps.bias", "mlp.experts.{expert}.gate_proj.bias"),
    "experts.up_bias": ("ffn_up_exps.bias", "mlp.experts.{expert}.up_proj.bias"),
    "experts.down_bias": ("ffn_down_exps.bias", "mlp.experts.{expert}.down_proj.bias"),
    "shared_expert.router": ("ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"),
    "shared_expert.gate": ("ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"),
    "shared_expert.up": ("ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"),
    "shared_expert.gate_up": ("", "mlp.shared_expert.gate_up_proj.weight"),
    "shared_expert.down": ("ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"),
    "input.gate": ("inp_gate.weight", "per_layer_input_gate.weight"),
    "input.projection": ("proj.weight", "per_layer_projection.weight"),
    "input.post_norm": ("post_norm.weight", "post_per_layer_input_norm.weight"),
    "scale": ("layer_output_scale.weight", "layer_scalar"),
}
_TOGETHER = ("gate", "up")  # may be one tensor
# Prefix of the language model in a folder, alone or with a vision part -> prefix of its output.
PREFIXES = {"model.": "", "": "", "language_model.model.": "language_model.", "model.language_model.": ""}
PREFIXES |= {"backbone.": ""}  # of Nemotron-H
PREFIXES |= {"bert.": "", "nomic_bert.": "", "roberta.": ""}  # of encoders with a head


# What is added to a token in each layer: a table with a row for each token, and what projects its embedding.
LAYER_INPUTS = ("layer_embedding", "layer_projection", "layer_projection_norm")


def layer_names(config: ModelConfig, layer: int) -> list[str]:
    """Our names of all tensors of a layer."""
    c, moe = config, config.is_moe(layer)
    latent = c.kv_rank > 0
    own = not latent and (not c.kv_layers or c.kv_layers[layer] == layer)  # keys and values
    own_values = own and not (c.keys_as_values and c.keys_as_values[layer])
    dense = c.layer(layer).feed_forward.width > 0
    fused, pre_norm = c.fused or c.fused_qkv, c.norm_before_attention(layer)
    fused_up = c.fused or c.fused_up
    shared, experts = moe and c.shared_expert > 0, range(c.experts if moe else 0)
    around = [
        (pre_norm, "norm"),
        (pre_norm and c.norm_bias, "norm_bias"),
        (c.post_norms, "post_norm"),
        (c.post_norms and c.norm_bias, "post_norm_bias"),
    ]
    recurrent = " ".join(c.recurrent.weights(c.width)) if c.recurrent and c.is_recurrent(layer) else ""
    expert = ("gate",) * c.gated + ("up", "down")
    parts: dict[str, list[tuple[bool, str]]] = {
        "attention": around
        if recurrent and not c.beside
        else [
            (fused, "qkv"),
            (not fused and not c.q_rank, "q"),
            (c.q_rank > 0, "q_a q_a_norm q_b"),
            (latent, "kv_a kv_a_norm"),
            (latent and c.joined_kv, "kv_b"),
            (latent and not c.joined_kv, "k_b v_b"),
            (not fused and own, "k"),
            (not fused and own_values, "v"),
            (c.qkv_bias, "q_bias"),
            (c.qkv_bias and own, "k_bias"),
            (c.qkv_bias and own_values, "v_bias"),
            (c.qk_norm in ("head", "row"), "q_norm"),
            (c.qk_norm in ("head", "row") and own, "k_norm"),
            (True, "output"),
            (c.output_bias, "output_bias"),
            (c.sinks, "sinks"),
            *around,
        ],
        "feed_forward": [
            (c.pre_norms and not c.parallel, "norm"),
            (c.pre_norms and c.norm_bias and not c.parallel, "norm_bias"),
            (dense and not fused_up and c.gated, "gate"),
            (dense and not fused_up, "up"),
            (dense and fused_up, "gate_up"),
            (dense, "down"),
            (dense and c.mlp_bias and c.gated, "gate_bias"),
            (dense and c.mlp_bias, "up_bias down_bias"),
            (moe and c.dense_and_experts, "dense_norm"),
            (c.post_norms, "post_norm"),
            (c.post_norms and c.norm_bias, "post_norm_bias"),
        ],
        "experts": [
            (moe, "router"),
            (moe and c.router_bias, "router_bias"),
            (moe and c.selection_bias, "selection_bias"),
            (moe and c.dense_and_experts, "norm post_norm router_norm scales"),
            (moe and c.expert_latent > 0, "latent_in latent_out"),
            *((True, " ".join(f"{i}.{part}" for part in expert)) for i in experts),
            *((c.expert_bias, f"{i}.gate_bias {i}.up_bias {i}.down_bias") for i in experts),
        ],
        "shared_expert": [
            (shared and c.shared_gate, "router"),
            (shared, "gate_up down" if c.fused_up else " ".join(expert)),
        ],
        "input": [(c.layer_input > 0, "gate projection post_norm")],
        "": [(c.layer_scale, "scale"), (bool(recurrent), recurrent)],
    }
    lacking = [] if c.has_mixer(layer) else ["attention"]
    lacking += [] if c.has_feed_forward(layer) else ["feed_forward"]
    return [
        f"layers.{layer}.{part}.{name}".replace("..", ".")
        for part, some in parts.items()
        if part not in lacking
        for there, names in some
        if there
        for name in names.split()
    ]


def shared_names(config: ModelConfig) -> list[str]:
    """Our names of the tensors outside the layers that every model of this configuration has."""
    found = ["token_embedding"] + ["output_norm"] * config.final_norm
    found += ["output_norm_bias"] * (config.final_norm and config.norm_bias)
    found += [] if config.tied_embeddings else ["output"]
    found += encoder_names(config)
    return found + ([*LAYER_INPUTS] if config.layer_input else [])


def encoder_names(config: ModelConfig) -> list[str]:
    """Those of them that only encoders have."""
    if not (of := config.encoding):
        return []
    found = ["position_embedding"] * of.positions + ["type_embedding"] * bool(of.token_types)
    norms = ["embedding_norm"] + ["embedding_norm_bias"] * config.norm_bias
    return found + norms * of.embedding_norm


def gguf_name(architecture: Architecture, name: str) -> str:
    """A tensor's name in GGUF files. The experts of a layer share one tensor."""
    if name in _WHOLE:
        return architecture.gguf_names.get(name, _WHOLE[name][0])
    _, layer, part = name.split(".", 2)
    part = re.sub(r"^experts\.\d+\.", "experts.", part)
    return f"blk.{layer}.{architecture.gguf_names.get(part, _LAYER[part][0])}"


def folder_names(architecture: str, name: str) -> list[str]:
    """A tensor's names in folders, without the model's prefix: one for each variant of the architecture."""
    if name in _WHOLE:
        return [_WHOLE[name][1]]
    _, layer, part = name.split(".", 2)
    variants = [each for each in all_architectures() if each.name == architecture]
    return [f"layers.{layer}.{_in_folder(each, part)}" for each in variants]


def _in_folder(architecture: Architecture, part: str) -> str:
    """The name in a layer of a folder."""
    expert = re.fullmatch(r"experts\.(\d+)\.(\w+)", part)
    key = f"experts.{expert[2]}" if expert else part
    folder = architecture.folder_names.get(key, _LAYER[key][1])
    return folder.format(expert=expert[1] if expert else "")


def _as_stored(architecture: Architecture, folder: WeightFile) -> Architecture:
    """The architecture for a folder that has experts in stacks, or one by one."""
    names = architecture.stacked_names
    if any(name.endswith(names["experts.down"]) for name in folder.names()):
        return replace(architecture, folder_names={**architecture.folder_names, **names})
    return replace(architecture, folder_stacks=None)


class NamedTensors:
    """The tensors of a model by our names. Raises ModelFileError if the file lacks one."""

    def __init__(self, weights: WeightFile, config: ModelConfig):
        self.weights, self.config = weights, config
        self._gguf = isinstance(weights, GgufFile)
        self._architecture = (
            architecture_named(config.architecture) if self._gguf else architecture_of_folder(weights.path)
        )
        if not self._gguf and self._architecture.stacked_names:
            self._architecture = _as_stored(self._architecture, weights)
        self._stacks = self._architecture.gguf_stacks if self._gguf else self._architecture.folder_stacks
        embedding = self._in_folder("token_embedding")
        found = (p for p in PREFIXES if f"{p}{embedding}" in weights)
        self._prefix = next(found, "model.")

    @property
    def is_gguf(self) -> bool:
        """Whether the tensors are in a GGUF file, in its order of rows."""
        return self._gguf

    def layer_names(self, layer: int) -> list[str]:
        """Our names of all tensors of a layer. Raises ModelFileError for more experts than the file has."""
        if self.config.is_moe(layer):
            self._refuse_too_many_experts(layer)
        return layer_names(self.config, layer)

    def file_name(self, name: str) -> str:
        """The tensor's name in the file."""
        return self._split(name)[0]

    def tensor(self, name: str) -> Stored:
        """A view of the mapped file. An expert of a stack is a view too, with a row for each output."""
        stored, expert = self._split(name)
        whole = self.weights.tensor(stored)
        if expert is None:
            return whole
        count, is_bias = self.config.experts, name.endswith("_bias")
        if whole.ndim != (2 if is_bias else 3) or whole.shape[0] != count or not 0 <= expert < count:
            found = f"has shape {whole.shape}"
            expected = f"({count}, {'values' if is_bias else 'rows, columns'}), as {name} is stored in it"
            raise ModelFileError(self.weights.path, f"tensor {stored}", found, expected)
        return self._of_stack(whole[expert], name.rpartition(".")[2].removesuffix("_bias"))

    def _of_stack(self, of_expert: Stored, part: str) -> Stored:
        """The "gate", "up" or "down" in an expert's part of a stack."""
        assert self._stacks
        if self._stacks.transposed and not isinstance(of_expert, Quantized):
            of_expert = np.asarray(of_expert).T
        if part not in _TOGETHER:
            return of_expert
        place = _TOGETHER.index(part)
        if self._stacks.fused or (self._stacks.interleaved and isinstance(of_expert, Quantized)):
            half = len(of_expert) // 2  # converted from a folder: a row for each output, the gate's first
            return of_expert[place * half : (place + 1) * half]
        return of_expert[place :: len(_TOGETHER)] if self._stacks.interleaved else of_expert

    def span(self, name: str) -> Span:
        """The tensor's bytes in its map."""
        stored, expert = self._split(name)
        span = self.weights.span(stored)
        if expert is None:
            return span
        each = span.nbytes // self.config.experts
        return Span(span.map, span.start + each * expert, each)

    def __contains__(self, name: str) -> bool:
        return self.file_name(name) in self.weights

    def _refuse_too_many_experts(self, layer: int) -> None:
        """Check the number of experts in the keys against the tensors, before a name is made for each."""
        needed, there = (2 + self.config.gated) * self.config.experts, len(self.weights.names())
        if self._stacks:
            self.tensor(f"layers.{layer}.experts.0.down")  # checks the size of the stack
        elif needed > there:
            found = f"has {there} tensors"
            raise ModelFileError(self.weights.path, f"layer {layer}", found, f"{needed} of experts alone")

    def _split(self, name: str) -> tuple[str, int | None]:
        """The tensor's name in the file, and the expert's index if it is a stack."""
        if name in _WHOLE:
            if self._gguf:
                return gguf_name(self._architecture, name), None
            prefix = PREFIXES[self._prefix] if name == "output" else self._prefix
            return prefix + self._in_folder(name), None
        if not (match := re.fullmatch(r"layers\.(\d+)\.(.+?)", name)):
            raise KeyError(name)
        layer, part = int(match[1]), match[2]
        expert = re.fullmatch(r"experts\.(\d+)\.(\w+)", part)
        if self._gguf:
            return gguf_name(self._architecture, name), int(expert[1]) if expert else None
        in_stack = int(expert[1]) if expert and self._stacks else None
        layers = f"{self._prefix}{self._architecture.folder_layers}"
        return f"{layers}.{layer}.{_in_folder(self._architecture, part)}", in_stack

    def _in_folder(self, name: str) -> str:
        """The name in a folder of a tensor outside the layers, without a prefix."""
        return self._architecture.folder_names.get(name, _WHOLE[name][1])
