"""Long texts, by the engine and by llama.cpp: a prompt of 8192 tokens, tokens after 8192 and 32768 others.

    python benchmarks/bench_long.py [--llama-cpp PYTHON] [--layers 2] [--caches f16,q8_0] [--near]

The model is synthetic: some layers of a Llama of 1B (width 2048, 32 heads, 8 for keys and values), with
random weights in q4_0. Attention takes the same share of a layer as in a whole model. Each engine runs in its
own process and takes its turn while the other sleeps; PYTHON is the interpreter of an environment with
llama-cpp-python, built for this CPU, with its fused attention. The texts are random tokens; nothing is
sampled. A figure is the median of the rounds, in tokens per second; a ratio that of the ratios of the rounds.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gguf
import numpy as np

from airllm import tensor_ops
from benchmarks import engine_peers, record
from benchmarks.engine_peers import Engine

WIDTH, WIDE, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 2048, 8192, 32, 8, 64, 4096
PROMPT, LONG, DECODED = 8192, 32768, 16
CONTEXT = LONG + 64
WANTED = 1.3  # times the speed of llama.cpp


def main() -> None:
    given = options()
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCABULARY - 1, CONTEXT).tolist()
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(Path(folder) / "long.gguf", given.layers)
        cases = [case for dtype in given.caches.split(",") for case in measure(path, dtype, tokens, given)]
    about = f"{given.layers} layers of width {WIDTH}, q4_0, {given.threads} threads, {given.rounds} rounds."
    if not given.llama_cpp:
        about += " Not there: llama_cpp."
    titles = ["cache", "what", "airllm", "llama.cpp", "ratio", "verdict"]
    record.write(
        "long",
        about,
        record.markdown(titles, [row_of(case) for case in cases]),
        {"cases": cases},
        given.output,
    )


def options() -> Any:
    parser = record.parser_of(__doc__ or "")
    parser.add_argument("--llama-cpp", metavar="PYTHON", help="an interpreter that has llama-cpp-python")
    parser.add_argument("--layers", type=int, default=2, help="of the model (default: %(default)s)")
    parser.add_argument("--caches", default="f16,q8_0", help="dtypes of caches (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of each figure (default: %(default)s)")
    parser.add_argument("--near", action="store_true", help=f"without the tokens after {LONG}")
    return parser.parse_args()


def measure(path: Path, dtype: str, tokens: list[int], given: Any) -> list[dict[str, Any]]:
    """The cases of one dtype of caches."""
    shared = {"context": CONTEXT, "cache_dtype": dtype}
    with ExitStack() as stack:
        engines = {"airllm": Engine(sys.executable, "airllm", path, given.threads, backend="cpp", **shared)}
        if given.llama_cpp:
            engines["llama_cpp"] = Engine(
                given.llama_cpp, "llama_cpp", path, given.threads, flash=True, **shared
            )
        for engine in engines.values():
            stack.callback(engine.close)

        def time_rounds(what: str, at: int, count: int, one_by_one: bool) -> dict[str, Any]:
            request = {"do": "extend", "at": at, "tokens": tokens[at : at + count], "one_by_one": one_by_one}
            rounds = [engine_peers.in_turn(engines, request) for _ in range(given.rounds)]
            return {"cache": dtype, "what": what, "tokens": count, "rounds": rounds}

        prompt = time_rounds(f"prompt of {PROMPT}", 0, PROMPT, False)
        near = time_rounds(f"tokens after {PROMPT}", PROMPT, DECODED, True)
        if given.near:
            return [prompt, near]
        rest = {"do": "extend", "at": PROMPT, "tokens": tokens[PROMPT:LONG], "one_by_one": False}
        engine_peers.in_turn(engines, rest)
        return [prompt, near, time_rounds(f"tokens after {LONG}", LONG, DECODED, True)]


def row_of(case: dict[str, Any]) -> list[str]:
    rounds = case["rounds"]

    def speed(side: str) -> str:
        if side not in rounds[0]:
            return ""
        return f"{case['tokens'] / statistics.median(each[side] for each in rounds):.1f}"

    ratio = verdict = ""
    if "llama_cpp" in rounds[0]:
        times = statistics.median(each["llama_cpp"] / each["airllm"] for each in rounds)
        ratio, verdict = f"{times:.2f}", "ok" if times >= WANTED else f"below {WANTED}"
    return [case["cache"], case["what"], speed("airllm"), speed("llama_cpp"), ratio, verdict]


def write_model(path: Path, layers: int) -> Path:
    """Random weights in q4_0; each matrix of a shape has the same data."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list([f"t{i}" for i in range(VOCABULARY)])
    writer.add_token_types([gguf.TokenType.NORMAL] * VOCABULARY)
    writer.add_token_merges(["t 1"])
    writer.add_eos_token_id(VOCABULARY - 1)
    stored: dict[tuple[int, int], np.ndarray] = {}

    def add(name: str, shape: tuple[int, int]) -> None:
        if shape not in stored:
            values = np.random.default_rng(shape[0]).standard_normal(shape, np.float32) / np.sqrt(shape[1])
            stored[shape] = tensor_ops.quantize(values, "q4_0").data
        writer.add_tensor(name, stored[shape], raw_dtype=gguf.GGMLQuantizationType.Q4_0)

    kv = KV_HEADS * HEAD_DIM
    shapes = {
        "attn_q": (WIDTH, WIDTH), "attn_k": (kv, WIDTH), "attn_v": (kv, WIDTH), "attn_output": (WIDTH, WIDTH),
        "ffn_gate": (WIDE, WIDTH), "ffn_up": (WIDE, WIDTH), "ffn_down": (WIDTH, WIDE),
    }  # fmt: skip
    for name in ("token_embd", "output"):
        add(f"{name}.weight", (VOCABULARY, WIDTH))
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for layer in range(layers):
        for name, shape in shapes.items():
            add(f"blk.{layer}.{name}.weight", shape)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


if __name__ == "__main__":
    main()
