"""Show the active backend and the times of its ops. Run it once for each backend that you configure.

python setup.py configure_backend --backend=cpp
python benchmarks/benchmark.py
"""

import argparse
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from airllm import tensor_ops
from airllm.bench import measure

ROWS, COLS = 128, 4096


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=form).parse_args()
    info = tensor_ops.get_backend_info()
    print(f"Active backend: {info['backend']} ({info['device']})")
    print(f"Available backends: {', '.join(info['available_backends'])}")
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((ROWS, COLS), np.float32), rng.standard_normal(COLS, np.float32)
    calls = {"rms_norm": partial(tensor_ops.rms_norm, x, weight)}
    calls |= {"silu": partial(tensor_ops.silu, x), "gelu": partial(tensor_ops.gelu, x)}
    print(f"\nfloat32 ({ROWS}, {COLS}), median of many calls:")
    for name, timing in measure.compare(calls, seconds=0.3).items():
        rate = 2 * x.nbytes / timing.median / 1e9
        print(f"  {name:<9} {1e6 * timing.median:8.1f} us  {rate:6.1f} GB/s")


if __name__ == "__main__":
    main()
