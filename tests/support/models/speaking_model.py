"""A tiny random Llama that has a tokenizer and a chat template, as a Hugging Face folder.

Its vocabulary is the 256 bytes, a few pairs of them, and three control tokens, which it never says by itself.
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from airllm.text.vocabulary import bytes_of_letters

LAYERS, WIDTH, HEADS, KV_HEADS, FEED_FORWARD, CONTEXT = 2, 64, 4, 2, 96, 64
END, BEGIN, FINISH = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
PAIRS = ("th", "he", "in", "an")
WORDS = 256 + len(PAIRS) + 3
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer() -> Tokenizer:
    ids = {letter: i for i, letter in enumerate(bytes_of_letters())}
    ids |= {pair: 256 + i for i, pair in enumerate(PAIRS)}
    made = Tokenizer(models.BPE(vocab=ids, merges=[(pair[0], pair[1]) for pair in PAIRS]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, special=True) for text in (END, BEGIN, FINISH)])
    return made


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * columns**-0.5 * 1.5).astype(np.float16)

    kv = WIDTH // HEADS * KV_HEADS
    found = {
        "model.embed_tokens.weight": matrix(WORDS, WIDTH) * np.float16(8),
        "model.norm.weight": np.ones(WIDTH, np.float16),
        "lm_head.weight": matrix(WORDS, WIDTH) * np.float16(2),
    }
    found["lm_head.weight"][-3:] = 0
    for i in range(LAYERS):
        shapes = {
            "self_attn.q_proj": (WIDTH, WIDTH),
            "self_attn.k_proj": (kv, WIDTH),
            "self_attn.v_proj": (kv, WIDTH),
            "self_attn.o_proj": (WIDTH, WIDTH),
            "mlp.gate_proj": (FEED_FORWARD, WIDTH),
            "mlp.up_proj": (FEED_FORWARD, WIDTH),
            "mlp.down_proj": (WIDTH, FEED_FORWARD),
        }
        found |= {f"model.layers.{i}.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"model.layers.{i}.{norm}.weight"] = rng.uniform(0.5, 1.5, WIDTH).astype(np.float16)
    return found


def write(folder: Path, **config: object) -> Path:
    """`config`: what else config.json shall say, or instead."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights(), folder / "model.safetensors")
    tokenizer().save(str(folder / "tokenizer.json"))
    values = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "intermediate_size": FEED_FORWARD,
        "vocab_size": WORDS,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
    }
    (folder / "config.json").write_text(json.dumps(values | config))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": END, "bos_token": None, "chat_template": TEMPLATE})
    )
    return folder
