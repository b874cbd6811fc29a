"""Which benchmarks are watched: how each runs in about a minute, and what its figures are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.watch import figures
from benchmarks.watch.figures import Reader


@dataclass(frozen=True)
class Watched:
    """A benchmark whose short run is compared with its stored table."""

    table: str  # its name in results/, without the CPU
    script: str
    short: str  # arguments that measure some of the stored cases, in about a minute
    read: Reader
    peers: Mapping[str, tuple[str, ...]]  # a peer -> its sides, of which the faster counts
    options: tuple[str, ...] = field(default=())  # of the watch, which the script takes too


PYTORCH = {"torch": ("torch",)}
ENGINES = {each: (each, f"{each} flash") for each in ("llama_cpp", "ik_llama_cpp")}
INTERPRETERS = ("llama_cpp", "ik_llama_cpp")

WATCHED = (
    Watched(
        "ops", "bench_ops.py", "--sizes 1x4096,128x4096,4096x4096 --seconds 0.15",
        figures.passes("{op} {rows}x{cols}"), PYTORCH | {"numpy": ("numpy",)},
    ),
    Watched(
        "fused", "bench_fused.py", "--seconds 0.15", figures.passes("{op} {shape} {dtype}"), PYTORCH,
    ),
    Watched(
        "attention", "bench_attention.py", "--seconds 0.2",
        figures.passes("{dtype} {model} {case}"), {"torch": ("gqa", "repeated")},
    ),
    Watched(
        "matmul", "bench_matmul.py", "--rows 1,512 --dtypes float32,bfloat16 --seconds 0.4",
        figures.passes("{dtype} {rows}x{width}"), PYTORCH | {"numpy": ("numpy",)},
    ),
    Watched(
        "one_row", "bench_one_row.py", "--depths 576,4096 --widths 64,576,4096 --seconds 0.3",
        figures.passes("1x{k} by {k}x{n}"), {"numpy": ("numpy",)},
    ),
    Watched(
        "products", "bench_products.py",
        "--shapes 4096x14336 --rows 1,8,512 --seconds 0.3 --formats q4_0,q8_0,q4_k,q6_k",
        figures.products, {"ggml": ("ggml", "repacked")},
    ),
    Watched(
        "dequantize", "bench_dequantize.py", "--seconds 0.3",
        figures.passes("{format}", "ours"), {"gguf": ("gguf",)},
    ),
    Watched(
        "dispatch", "bench_dispatch.py", "", figures.dispatch, PYTORCH | {"the kernel": ("tensor_ops_cpp",)},
    ),
    Watched(
        "engine", "bench_engine.py", "--formats q4_1,q8_0 --rounds 4",
        figures.engines("format"), ENGINES | {"in memory": ("in memory",)}, INTERPRETERS,
    ),
    Watched(
        "models", "bench_models.py", "--shapes llama-3.2-1b:16 --formats q4_k_m --rounds 4",
        figures.engines("model"), ENGINES, INTERPRETERS,
    ),
    Watched(
        "batches", "bench_batches.py", "--sequences 1,16 --rounds 2",
        figures.batches, {"llama_cpp": ("llama_cpp",), "one sequence": ("one sequence",)}, ("llama_cpp",),
    ),
    Watched(
        "long", "bench_long.py", "--caches f16 --rounds 2 --near",
        figures.long, {"llama_cpp": ("llama_cpp",)}, ("llama_cpp",),
    ),
    Watched(
        "step", "bench_step.py", "--rounds 10", figures.step, {"engine": ("engine",), "ops": ("ops",)},
    ),
    Watched(
        "drafts", "bench_drafts.py", "--rounds 4", figures.drafts, {"without drafts": ("without",)},
    ),
    Watched(
        "scheduler", "bench_scheduler.py", "", figures.scheduler,
        {"one sequence": ("one sequence",), "computed": ("computed",)},
    ),
    Watched(
        "serve", "bench_serve.py", "--rounds 1 --tokens 128",
        figures.serve, {"llama.cpp": ("llama.cpp",)}, ("llama_server",),
    ),
)  # fmt: skip

# The others, and why.
NOT_WATCHED = {
    "bench_cuda.py": "needs a GPU; gpu_day.py runs it",
    "bench_grammar.py": "has no peer, and prints its figures",
    "bench_streaming.py": "writes and reads gigabytes; its peer is the disk",
}

# A peer -> what to do so that it is there.
REMEDIES = {
    "torch": "pip install torch",
    "ggml": "python -m benchmarks.ggml_peer says what its build lacks",
    "gguf": 'pip install -e ".[all]"',
    "llama_cpp": "--llama-cpp PYTHON (benchmarks/README.md)",
    "ik_llama_cpp": "--ik-llama-cpp PYTHON (benchmarks/README.md)",
    "llama.cpp": "--llama-server BINARY (benchmarks/README.md)",
}
