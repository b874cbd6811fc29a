"""Finds a model's files by name: a local path, a Hugging Face repository, or `smollm2`.

A local path never uses the network.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from difflib import get_close_matches
from glob import escape
from os import PathLike
from pathlib import Path
from typing import Any

from airllm import extras
from airllm.files import smollm2
from airllm.files.stores import ModelNotFound, in_store
from airllm.files.weight_file import is_text_model, name_all_parts, name_models
from airllm.progress import OnProgress, unseen

SMOLLM2 = "smollm2"
# The files that an engine opens. Repositories may also have other weights, such as PyTorch's.
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
_WANTED = f"the path of a GGUF file or of a folder, owner/repository of Hugging Face, or {SMOLLM2}"
__all__ = ["ModelNotFound", "locate"]
_NAME = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+?)(?:[:/](?P<file>[^:]+))?", re.ASCII)
# The start of an address, as people copy it from a browser or another program.
_SITE = re.compile(r"(?:https?://)?(?:www\.)?(?:hf\.co|huggingface\.co)/+", re.IGNORECASE)
_PAGE = re.compile(
    r"(?P<repo>[^/]+/[^/]+)/(?:blob|resolve|tree)/(?P<revision>[^/]+)/?(?P<file>[^?]*)(?:\?.*)?"
)
# Exceptions of the network libraries of huggingface_hub if the server does not answer.
_UNREACHED = {
    "ConnectionError",
    "ConnectError",
    "TimeoutException",
    "Timeout",
    "TransportError",
    "OfflineModeIsEnabled",
}


def locate(
    name: str | PathLike[str],
    revision: str | None = None,
    token: str | bool | None = None,
    on_progress: OnProgress = unseen,
) -> Path:
    """The GGUF file or folder of a model, downloaded if necessary. Raises ModelNotFound.

    `name` is one of: a path (always, if it is a Path); `owner/repository` on Hugging Face;
    `owner/repository:file.gguf` (or `/file.gguf`, or a part of the name, such as `:Q4_0`) for a GGUF file in
    one; either of them after `hf.co/` or as an address of huggingface.co; `ollama:qwen3:4b` and
    `lmstudio:owner/repository` for models in the stores of these programs; `smollm2`, a small model for first
    tries. Only the files that an engine needs are downloaded, into the cache of the package huggingface_hub.
    `revision` and `token` are for Hugging Face.
    """
    try:
        path = Path(name).expanduser()
    except RuntimeError as error:  # ~nobody
        raise ModelNotFound(f"{name}: {error}") from None
    if path.exists():
        return path
    if isinstance(name, str) and (kept := in_store(name)):
        return kept
    if name == SMOLLM2:
        return _smollm2(on_progress)
    expected, of_page = _without_site(name) if isinstance(name, str) else ("", None)
    match = _NAME.fullmatch(expected)
    if match is None or match["repo"].startswith(".") or match["repo"].endswith(".gguf"):
        raise ModelNotFound(f"{name}: no such file or folder{_suggest(path)}, expected {_WANTED}")
    return _fetch(match["repo"], match["file"], {"revision": revision or of_page, "token": token})


def public_name(model: str) -> str:
    """What clients call a model: of a path, the name of the file or folder. The rest is nobody's business."""
    path = Path(model)
    return (path.stem if path.is_file() else path.resolve().name) if path.exists() else model


def _without_site(name: str) -> tuple[str, str | None]:
    """The repository and file of an address, and its revision, None if that is main."""
    site = _SITE.match(name)
    if not site:
        return name, None
    rest = name[site.end() :].rstrip("/")
    page = _PAGE.fullmatch(rest)
    if not page:
        return rest, None
    revision = None if page["revision"] == "main" else page["revision"]
    return f"{page['repo']}:{page['file']}" if page["file"] else page["repo"], revision


def _suggest(path: Path) -> str:
    """A suggestion for a mistyped name: smollm2, or a neighbour of the path."""
    folder = path.parent
    try:
        beside = [each.name for each in folder.iterdir() if each.is_dir() or each.suffix == ".gguf"]
    except OSError:
        beside = []
    known = {name.lower(): name for name in [*beside, *([SMOLLM2] if folder == Path() else [])]}
    found = get_close_matches(path.name.lower(), known, 1)
    if not found:
        return ""
    name = known[found[0]]
    return f" (did you mean {name if name == SMOLLM2 else folder / name}?)"


def _smollm2(on_progress: OnProgress) -> Path:
    try:
        path = smollm2.cache_dir() / smollm2.GGUF
        if path.is_file() and path.stat().st_size == smollm2.GGUF_BYTES:
            return path  # its hash was checked after the download
        return smollm2.fetch(on_progress=on_progress)
    except smollm2.Unavailable as error:
        raise ModelNotFound(f"{SMOLLM2}: {error}") from error


def _fetch(repo: str, file: str | None, access: dict[str, Any]) -> Path:
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        found = f"{repo} is not a file or folder here"
        command = extras.command("hub")
        raise ModelNotFound(f"{found}; to fetch it from Hugging Face: {command}") from None
    try:
        return _gguf(hub, repo, file, access) if file else _folder(hub, repo, access)
    except ModelNotFound:
        raise
    except Exception as error:  # the package and its network libraries may raise anything
        raise ModelNotFound(f"{repo}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """The reason of an error, in one line."""
    cause = next((each for each in _causes(error) if _is_offline(each)), None)
    if cause is None:
        why = " ".join(str(error).split()) or type(error).__name__
        return f"could not be fetched from Hugging Face: {why}"
    why = str(cause).partition("\n")[0] or type(cause).__name__
    return f"is not in the cache here, and Hugging Face cannot be reached: {why}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The chain of causes, the deepest first: it says the most."""
    if error is not None:
        yield from _causes(error.__cause__ or error.__context__)
        yield error


def _is_offline(error: BaseException) -> bool:
    return any(kind.__name__ in _UNREACHED for kind in type(error).__mro__)


def _folder(hub: Any, repo: str, access: dict[str, Any]) -> Path:
    """The safetensors of a repository with their other files, or its only GGUF file if it has none."""
    folder = Path(hub.snapshot_download(repo, allow_patterns=_NEEDED, **access))
    if (folder / "config.json").is_file() and any(folder.glob("model*.safetensors")):
        return folder
    return _gguf(hub, repo, ".gguf", access)


def _gguf(hub: Any, repo: str, part: str, access: dict[str, Any]) -> Path:
    """The GGUF file of this name, or of the only model with `part` in its name."""
    if part.endswith(".gguf") and part != ".gguf" and (path := _file(hub, repo, part, access)).is_file():
        return path
    names = [name for name in _names(hub, repo, access) if name.endswith(".gguf")]
    files = name_models(filter(is_text_model, names))
    found = [name for name in files if part.lower() in name.lower()]
    if len(found) == 1:
        return _file(hub, repo, found[0], access)
    if not files:
        raise ModelNotFound(f"{repo}: has no safetensors and no GGUF file, expected one of them")
    expected = f"one of them by name, as in {repo}:{(found or files)[0]}"
    raise ModelNotFound(f"{repo}: has the GGUF files {', '.join(found or files)}, expected {expected}")


def _file(hub: Any, repo: str, name: str, access: dict[str, Any]) -> Path:
    """The local path of a repository's file, which is fetched with the other parts of its model. It may not
    exist. (Without a network, hf_hub_download would take half a minute.)
    """
    patterns = [escape(each) for each in name_all_parts(name)]
    return Path(hub.snapshot_download(repo, allow_patterns=patterns, **access)) / name


def _names(hub: Any, repo: str, access: dict[str, Any]) -> list[str]:
    """The files of a repository. If it is unreachable, those that were downloaded before."""
    try:
        return [each.rfilename for each in hub.model_info(repo, **access).siblings or ()]
    except Exception as error:
        if not any(map(_is_offline, _causes(error))):
            raise
        try:
            folder = Path(hub.snapshot_download(repo, local_files_only=True, **access))
        except Exception:  # nothing was downloaded: the first error says more
            raise error from None
        return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
