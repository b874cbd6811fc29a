"""`AutoModel.from_pretrained(...)`, with the interface of AirLLM and transformers."""

from __future__ import annotations

from os import PathLike
from typing import Any

from airllm.engine.engine import LayerWiseInferenceEngine
from airllm.files.hub import locate

__all__ = ["AutoModel"]

# Options of AirLLM's from_pretrained that this one lacks -> what to use instead.
_ELSEWHERE = {
    "compression": "weights run as they are stored: make a smaller file with `airllm quantize`",
    "layer_shards_saving_path": "nothing is written: layers are read from the model's own file",
    "delete_original": "nothing is written: layers are read from the model's own file",
    "prefetching": "layers are always read ahead where max_memory is less than the model",
    "profiling_mode": "`airllm profile` shows where the time goes",
    "device": "choose with backend=",
    "dtype": "weights run as they are stored; compute='float32' is exact",
}


class AutoModel:
    """Opens a model by its path or its name on Hugging Face."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise TypeError('AutoModel(...) opens no model: call AutoModel.from_pretrained("smollm2")')

    @classmethod
    def from_pretrained(
        cls,
        name: str | PathLike[str],
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        hf_token: str | None = None,
        max_seq_len: int | None = None,
        **options: Any,
    ) -> LayerWiseInferenceEngine:
        """Open an engine for a model.

        `name` is a local GGUF file or folder, which never uses the network; `owner/repository` on Hugging
        Face; `owner/repository:file.gguf` or `:Q4_K_M` for a GGUF file in one; an address (`hf.co/...`); or
        `smollm2`. Missing files are downloaded once.

        `options` are those of `LayerWiseInferenceEngine`. `revision` and `token` (or `hf_token`) are for
        Hugging Face; a `draft_model` is named like the model. `max_seq_len` is another name for `context`.
        Unlike AirLLM's, the engine's `generate`
        takes and returns text. Raises ModelNotFound, an OSError, if there is no such model.
        """
        for option in options:
            if option in _ELSEWHERE:
                raise TypeError(f"from_pretrained has no option {option!r} here: {_ELSEWHERE[option]}")
        if max_seq_len is not None:
            options.setdefault("context", max_seq_len)
        token = token if token is not None else hf_token
        path = locate(name, revision, token)
        if isinstance(draft := options.get("draft_model"), str):
            options["draft_model"] = locate(draft, None, token)
        return LayerWiseInferenceEngine(path, **options)
