"""From a model's name to its files: a path of this machine, a Hugging Face repository, or `smollm2`.

What is a path never touches the network.
"""

from __future__ import annotations

import importlib
import re
from os import PathLike
from pathlib import Path
from typing import Any

from airllm import real_data
from airllm.models.weights import is_in_parts, is_text_model
from airllm.real_data import OnProgress, unseen

SMOLLM2 = "smollm2"
INSTALL = 'python -m pip install -e ".[hub]", or huggingface_hub'
# What an engine opens. Not other weights that repositories hold beside them, such as PyTorch's.
_NEEDED = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*-of-*.safetensors",
]
_NAME = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+?)(?:[:/](?P<file>[^:]+))?", re.ASCII)


class ModelNotFound(FileNotFoundError):
    """There is no such model here, or it could not be fetched; the message says why and what to do."""


def located(
    name: str | PathLike[str],
    revision: str | None = None,
    token: str | bool | None = None,
    on_progress: OnProgress = unseen,
) -> Path:
    """The GGUF file or folder of a model, fetched if need be. Raises ModelNotFound.

    `name`: a path, which a Path always is; or `owner/repository` of Hugging Face, of which only what an
    engine needs is fetched, into the package huggingface_hub's cache; `owner/repository:file.gguf` (or
    `/file.gguf`, or a part of the name, such as `:Q4_0`) for a GGUF file in one; or `smollm2`, a small model
    for first tries. `revision` and `token` are for Hugging Face.
    """
    try:
        path = Path(name).expanduser()
    except RuntimeError as error:  # ~nobody
        raise ModelNotFound(f"{name}: {error}") from None
    if path.exists():
        return path
    if name == SMOLLM2:
        return _smollm2(on_progress)
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None or match["repo"].startswith(".") or match["repo"].endswith(".gguf"):
        wanted = f"a GGUF file, a folder, owner/repository of Hugging Face, or {SMOLLM2}"
        raise ModelNotFound(f"{name}: no such file or folder, expected {wanted}")
    return _fetched(match["repo"], match["file"], {"revision": revision, "token": token})


def _smollm2(on_progress: OnProgress) -> Path:
    try:
        path = real_data.cache_dir() / real_data.GGUF
        if (
            path.is_file() and path.stat().st_size == real_data.GGUF_BYTES
        ):  # its hash was checked when it came
            return path
        return real_data.fetch(on_progress=on_progress)
    except real_data.Unavailable as error:
        raise ModelNotFound(f"{SMOLLM2}: {error}") from error


def _fetched(repo: str, file: str | None, access: dict[str, Any]) -> Path:
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        found = f"{repo} is no file or folder here"
        raise ModelNotFound(f"{found}; to fetch it from Hugging Face, install {INSTALL}") from None
    try:
        return _gguf(hub, repo, file, access) if file else _folder(hub, repo, access)
    except ModelNotFound:
        raise
    except Exception as error:  # whatever the package and its network libraries may raise
        why = " ".join(str(error).split()) or type(error).__name__
        raise ModelNotFound(f"{repo}: could not be fetched from Hugging Face: {why}") from error


def _folder(hub: Any, repo: str, access: dict[str, Any]) -> Path:
    """The safetensors of a repository and what belongs to them; its only GGUF file if it has none."""
    folder = Path(hub.snapshot_download(repo, allow_patterns=_NEEDED, **access))
    if (folder / "config.json").is_file() and any(folder.glob("model*.safetensors")):
        return folder
    return _gguf(hub, repo, ".gguf", access)


def _gguf(hub: Any, repo: str, part: str, access: dict[str, Any]) -> Path:
    """The GGUF file of this name, or the only one that has `part` in its name."""
    if part.endswith(".gguf") and part != ".gguf":
        return Path(hub.hf_hub_download(repo, part, **access))
    files = [name for name in hub.list_repo_files(repo, **access) if name.endswith(".gguf")]
    files = [name for name in files if is_text_model(name) and not is_in_parts(name)]
    found = [name for name in files if part.lower() in name.lower()]
    if len(found) == 1:
        return Path(hub.hf_hub_download(repo, found[0], **access))
    if not files:
        raise ModelNotFound(f"{repo}: has no safetensors and no GGUF file in one part, expected one of them")
    wanted = f"one of them by name, as in {repo}:{(found or files)[0]}"
    raise ModelNotFound(f"{repo}: has the GGUF files {', '.join(found or files)}, expected {wanted}")
