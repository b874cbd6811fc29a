"""Inputs to begin with: small valid files that are made here, and the files of `corpus/`.

`corpus/TARGET/` has seeds that are text, and every input that was a finding once.
"""

import atexit
import functools
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from tests.support.models import published, speaking_model, tiny_gguf, tiny_models, tokenizer_files

CORPUS = Path(__file__).with_name("corpus")
# Architectures whose layers differ: grouped heads, experts, windows, fused matrices, latents, sinks.
_GGUF = ("llama3", "qwen3_moe", "gemma2", "phi3", "deepseek_v2_lite", "gpt_oss")
# Folders, by their model_type.
FOLDERS = {
    json.loads((path / "config.json").read_text())["model_type"]: path
    for path in sorted(tiny_models.DATA.iterdir(), reverse=True)
    if path.is_dir()
}


def corpus(target: str) -> list[bytes]:
    """The files of a target's corpus, in the order of their names."""
    return [path.read_bytes() for path in sorted((CORPUS / target).iterdir()) if path.is_file()]


@functools.cache
def gguf_files() -> list[bytes]:
    """Models in floats and in blocks, and a vocabulary of SentencePiece."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "made.gguf")
        found = [small_gguf(path)]
        for name in _GGUF:
            for stored in ("float", "blocks"):
                found.append(tiny_gguf.write_gguf(name, path, stored).read_bytes())
        return [*found, tokenizer_files.write("sentence pieces", path).read_bytes()]


def small_gguf(path: Path) -> bytes:
    """A model of 10 kB, with a chat template: what is found with it makes small files of the corpus."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(32)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e4)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    letters = [chr(33 + i) for i in range(60)]
    writer.add_token_list([*letters, "AB", "<s>", "</s>", "<|im_end|>"])
    writer.add_token_types([gguf.TokenType.NORMAL] * 61 + [gguf.TokenType.CONTROL] * 3)
    writer.add_token_merges(["A B"])
    writer.add_bos_token_id(61)
    writer.add_eos_token_id(62)
    writer.add_chat_template("{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}")
    rng = np.random.default_rng(0)
    shapes = {"token_embd": (64, 32), "output": (64, 32), "output_norm": (32,)}
    layer = {"attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32),
             "ffn_gate": (32, 32), "ffn_up": (32, 32), "ffn_down": (32, 32),
             "attn_norm": (32,), "ffn_norm": (32,)}  # fmt: skip
    for name, shape in (shapes | {f"blk.0.{name}": shape for name, shape in layer.items()}).items():
        values = rng.standard_normal(shape).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0 if len(shape) == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@functools.cache
def safetensors_files() -> list[bytes]:
    """The weights of a tiny model, and one file of all dtypes."""
    dtypes = (np.float32, np.float16, np.int8, np.uint8, np.int64, np.bool_, np.float64)
    others = {f"t.{np.dtype(each)}": np.zeros((2, 3), each) for each in dtypes}
    return [save(speaking_model.weights()), save(others | {"empty": np.zeros((0, 3), np.float32)})]


def tunings() -> list[bytes]:
    """The corpus's file as if it had been measured on this machine: only then its times choose backends."""
    from airllm.backends import registry, tuning_file

    values = json.loads((CORPUS / "tuning" / "two_backends.json").read_text())
    devices = {name: registry.open_backend(name).device for name in ("cpp", "python")}
    values["machine"] = vars(tuning_file.this_machine(devices))
    return [json.dumps(values).encode()]


@functools.cache
def configs() -> list[bytes]:
    return [(path / "config.json").read_bytes() for path in FOLDERS.values()]


# quant_method -> quantization_config, and how a matrix is made
_PUBLISHED: dict[str, tuple[dict[str, Any], Callable[..., published.Made]]] = {
    "gptq": ({"bits": 4, "group_size": 32, "sym": False},
             functools.partial(published.gptq, bits=4, group=32, symmetric=False)),
    "awq": ({"bits": 4, "group_size": 32}, functools.partial(published.awq, group=32)),
    "bitsandbytes": ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
                     functools.partial(published.bnb_4bit, kind="nf4", block=96, nested=7)),
    "fp8": ({"weight_block_size": [24, 20]},
            functools.partial(published.fp8, scale_name="weight_scale_inv", block=(24, 20))),
    "compressed-tensors": (
        {"format": "pack-quantized", "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False}}}},
        functools.partial(published.packed_integers, bits=4, group=32, symmetric=False)),
    "mlx": ({"group_size": 32, "bits": 4}, functools.partial(published.mlx, bits=4, group=32)),
}  # fmt: skip


@functools.cache
def published_folders() -> dict[str, Path]:
    """A folder with quantized weights of each method. They are there until this process ends."""
    root, found = tempfile.mkdtemp(prefix="airllm-fuzz-published-"), {}
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    for method, (given, make) in _PUBLISHED.items():
        rng, config = np.random.default_rng(0), given | ({} if method == "mlx" else {"quant_method": method})

        def quantized(module: str, shape: tuple[int, int], rng: Any = rng, make: Any = make) -> Any:
            return make(rng, shape)

        (path := Path(root, method)).mkdir()
        values = {"quantization" if method == "mlx" else "quantization_config": config}
        found[method], _ = published.write_folder(path, "llama2", values, quantized)
    return found


def published_configs() -> list[bytes]:
    return [(path / "config.json").read_bytes() for path in published_folders().values()]


@functools.cache
def tokenizers() -> list[bytes]:
    """One of each kind: bytes as letters, a unigram model, pairs with bytes beside, pieces of words."""
    made = [speaking_model.tokenizer(), *_others()]
    return [each.to_str().encode() for each in made]


def _others() -> Iterator[Tokenizer]:
    pieces = [("<unk>", 0.0), ("\u2581", -1.0), ("a", -2.0), ("b", -2.0), ("\u2581ab", -3.0)]
    unigram = Tokenizer(models.Unigram(pieces, unk_id=0))
    unigram.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(" ", "\u2581")])
    unigram.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    unigram.add_special_tokens(["<s>"])
    yield unigram
    ids = {"a": 0, "b": 1, "ab": 2, "<0x0A>": 3, "\u2581": 4, "<unk>": 5}
    pairs = Tokenizer(models.BPE(vocab=ids, merges=[("a", "b")], byte_fallback=True, unk_token="<unk>"))
    pairs.pre_tokenizer = pre_tokenizers.Split("\\s+", "isolated")
    pairs.decoder = decoders.Metaspace()
    yield pairs
    words = Tokenizer(
        models.WordPiece(vocab={"[UNK]": 0, "a": 1, "##b": 2, "[CLS]": 3, "[SEP]": 4}, unk_token="[UNK]")
    )
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.decoder = decoders.WordPiece()
    yield words
