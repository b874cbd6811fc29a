"""Make tests/data/tiny_encoders: tiny random encoders, and the states that transformers computes with them.

`python -m tests.references.tiny_models` makes these too.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tests.references import tiny_models as decoders
from tests.support.models import tiny_models
from tests.support.models.tiny_encoders import DATA, DECLARED, ENCODERS, STATES

_STRONG = {
    "query": "q_proj",
    "key": "k_proj",
    "wqkv": "qkv_proj",
}  # these names of theirs are matrices like ours


def model_of(name: str) -> Any:
    """The model with its random weights, float32."""
    architecture, tiny = DECLARED[name]
    kind = tiny.model_type or (architecture.marked_by or architecture.model_types)[0]
    config = transformers.CONFIG_MAPPING[kind](**tiny.values)
    config._attn_implementation = "eager"
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").to(torch.float32).eval()
    with torch.no_grad():
        for each, parameter in model.named_parameters():
            known = f"{name}.{each}".lower()
            for theirs, ours in _STRONG.items():
                known = known.replace(theirs, ours)
            less_one = kind in tiny_models.NORMS_LESS_ONE
            found = decoders.weight(known, tuple(parameter.shape), less_one)
            parameter.copy_(torch.from_numpy(found))
    return model


def states_of(model: Any) -> np.ndarray:
    """Of all tokens of all texts. A padded batch must give the same."""
    texts, found = tiny_models.texts(), []
    longest = max(map(len, texts))
    with torch.no_grad():
        ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
        mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])
        together = model(input_ids=ids, attention_mask=mask).last_hidden_state.numpy()
        for text, padded in zip(texts, together, strict=True):
            alone = model(input_ids=torch.tensor([text])).last_hidden_state[0].numpy()
            decoders.compare("transformers with padding", padded[: len(text)], alone)
            found.append(alone)
    return np.concatenate(found)


def save(name: str, folder: Path) -> None:
    model = model_of(name)
    model.to(getattr(torch, DECLARED[name][1].dtype)).save_pretrained(folder)


def make(names: tuple[str, ...] = ENCODERS) -> None:
    for name in names:
        shutil.rmtree(DATA / name, ignore_errors=True)
        save(name, DATA / name)
    kept = dict(np.load(STATES)) if STATES.is_file() else {}
    kept = {name: states for name, states in kept.items() if name in ENCODERS}
    np.savez_compressed(STATES, **kept | {name: states_of(model_of(name)) for name in names})


def add() -> None:
    """Make what is missing only."""
    make(tuple(name for name in ENCODERS if not (DATA / name).is_dir()))


def check() -> None:
    """Raises where what is kept is not what is made now."""
    with tempfile.TemporaryDirectory() as scratch, np.load(STATES) as kept:
        if set(kept) != set(ENCODERS):
            raise ValueError(f"{STATES} has {sorted(kept)}, expected {sorted(ENCODERS)}")
        for name in ENCODERS:
            save(name, folder := Path(scratch) / name)
            decoders.same_folder(folder, DATA / name)
            decoders.compare(f"{STATES.name}: {name}", kept[name], states_of(model_of(name)))
