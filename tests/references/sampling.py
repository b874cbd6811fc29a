"""Make tests/data/sampling.json: what transformers' logits processors make of some logits.

python -m tests.references.sampling
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.generation import logits_process as processors

SETTINGS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"temperature": 1.7},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_k": 1000},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 2.0, "top_p": 0.5},
    {"temperature": 1.0, "top_p": 0.01},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 3.0, "min_p": 0.4},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 1.0, "repetition_penalty": 1.3},
    {"temperature": 1.0, "repetition_penalty": 0.8},
    {"temperature": 0.7, "top_k": 12, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.2},
    {"temperature": 1.5, "top_k": 9, "top_p": 0.6, "min_p": 0.3},
]


def probabilities(logits: np.ndarray, seen: list[int], s: dict[str, Any]) -> list[float]:
    """Of each token, in the order in which generate() applies the processors."""
    steps: list[Any] = []
    if "repetition_penalty" in s:
        steps.append(processors.RepetitionPenaltyLogitsProcessor(s["repetition_penalty"]))
    steps.append(processors.TemperatureLogitsWarper(s["temperature"]))
    named = {
        "top_k": processors.TopKLogitsWarper,
        "top_p": processors.TopPLogitsWarper,
        "min_p": processors.MinPLogitsWarper,
    }
    steps += [made(s[name]) for name, made in named.items() if name in s]
    scores = torch.tensor(logits, dtype=torch.float32)[None]
    for step in steps:
        scores = step(torch.tensor([seen]), scores)
    return [round(float(p), 7) for p in scores.softmax(-1)[0]]


def main() -> None:
    rng = np.random.default_rng(7)
    cases = []
    for settings in SETTINGS:
        logits = [round(float(x), 3) for x in rng.standard_normal(30) * 2]
        logits[3] = logits[11]  # a tie
        seen = rng.integers(0, 30, 8).tolist()
        expected = probabilities(np.array(logits), seen, settings)
        cases.append({"settings": settings, "logits": logits, "seen": seen, "probabilities": expected})
    lines = ",\n".join(map(json.dumps, cases))
    origin = f"transformers {transformers.__version__}, its logits processors on float32"
    path = Path(__file__).parents[1] / "data" / "sampling.json"
    path.write_text(f'{{"from": {json.dumps(origin)}, "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
