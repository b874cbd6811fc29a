"""Tokens per second with drafts and without, for a text that quotes its prompt and one that does not.

    python benchmarks/bench_drafts.py [--model smollm2] [--draft-model MODEL] [--rounds 5] [--tokens 256]

Two engines of the same model generate the same text in turns, one with drafts. They must give the same text.
A model that is small does not quote well, so the first text is the prompt's continuation of itself: a list
that is repeated. Each ratio is the median of the rounds; the first round does not count.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from airllm.bench import measure
from airllm.files.hub import locate
from airllm.layer_engine import LayerWiseInferenceEngine
from benchmarks import record

LINES = (
    "The ferry leaves Nordhavn at 7:15 and reaches the island of Sommer before nine.",
    "Tickets cost 42 crowns; children under six and dogs on a leash travel free of charge.",
    "Bicycles are stored on the lower deck, where the crew fastens them with blue straps.",
    "In a storm above force nine the captain waits for the next tide and posts a notice.",
)
QUOTING = "\n".join([*LINES, "", "The same four lines again, word for word:", "", *LINES, "", *LINES[:1], ""])
FREE = "Write a short story about an old clock that a girl finds in the forest."
# name -> prompt, whether it is a question for the chat template, and the least ratio
TEXTS: dict[str, tuple[str, bool, float]] = {
    "quotes its prompt": (QUOTING, False, 1.5),
    "does not": (FREE, True, 0.97),
}

Round = dict[str, Any]


def main() -> None:
    parser = record.parser_of(__doc__ or "")
    parser.add_argument("--model", default="smollm2", help="a path or a name (default: %(default)s)")
    parser.add_argument("--draft-model", help="a smaller model with the same tokenizer")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=256, help="of each text (default: %(default)s)")
    options = parser.parse_args()
    path = locate(options.model)
    draft = options.draft_model and locate(options.draft_model)
    with measure.threads(options.threads):
        rounds = measure_texts(path, draft, options.rounds, options.tokens)
    about = f"{path.name}, {options.threads} threads, {options.rounds} rounds of {options.tokens} tokens."
    titles = ["the text", "tokens/s without", "with drafts", "drafted", "accepted", "ratio", "verdict"]
    table = record.markdown(titles, [row_of(name, rounds[name]) for name in TEXTS])
    record.write("drafts", about, table, {"model": path.name, "rounds": rounds}, options.output)


def measure_texts(path: Path, draft: Path | None, count: int, tokens: int) -> dict[str, list[Round]]:
    """The rounds of each text. Both engines stay open, as a program's would."""
    with (
        LayerWiseInferenceEngine(path, speculative=False) as plain,
        LayerWiseInferenceEngine(path, speculative=True, draft_model=draft) as drafting,
    ):
        engines = {"without": plain, "with": drafting}
        return {name: [round_of(engines, name, tokens) for _ in range(count + 1)][1:] for name in TEXTS}


def round_of(engines: dict[str, LayerWiseInferenceEngine], name: str, tokens: int) -> Round:
    """Decoding speeds of both engines, and what the second one drafted."""
    prompt, is_question, _ = TEXTS[name]
    found: Round = {}
    texts = set()
    for side, engine in engines.items():
        question = [{"role": "user", "content": prompt}]
        texts.add(engine.chat(question, tokens) if is_question else engine.generate(prompt, tokens))
        done = engine.statistics
        assert done
        found |= {side: done.tokens_per_second}
        found |= {"drafted": done.drafted_tokens, "accepted": done.accepted_tokens}
    if len(texts) > 1:
        raise SystemExit(f"bench_drafts.py: the text that {name!r} differs with drafts")
    return found | {"ratio": found["with"] / found["without"]}


def row_of(name: str, rounds: list[Round]) -> list[str]:
    medians = {what: statistics.median(each[what] for each in rounds) for what in rounds[0]}
    least = TEXTS[name][2]
    verdict = f"{'met' if medians['ratio'] >= least else 'missed'} ({least}x)"
    figures = [f"{medians[what]:.0f}" for what in ("without", "with", "drafted", "accepted")]
    return [name, *figures, f"{medians['ratio']:.3f}x", verdict]


if __name__ == "__main__":
    main()
