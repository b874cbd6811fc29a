"""Models that other programs keep here: in the stores of Ollama and LM Studio, in Hugging Face's cache.

Nothing is fetched, copied or changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from airllm.files.weight_file import ModelFileError, is_text_model, name_models, read_json

_REGISTRY = "registry.ollama.ai"
_MODEL_LAYER = "application/vnd.ollama.image.model"
_TAG = re.compile(r"(?P<name>[\w.-]+(?:/[\w.-]+)*)(?::(?P<tag>[\w.-]+))?", re.ASCII)


class ModelNotFound(FileNotFoundError):
    """There is no such local model, or it could not be downloaded. The message says why and what to do."""


@dataclass(frozen=True)
class Found:
    """A model of a store: the name that opens it, the size of its weights in bytes, and where it is."""

    name: str
    nbytes: int
    path: Path


@dataclass(frozen=True)
class Store:
    """`title`: the program's name. `roots` yields the folders where it may keep models. `find` returns a
    model's path by its name in this store, without the prefix; without it, names have no prefix.
    """

    title: str
    roots: Callable[[], Iterator[Path]]
    models: Callable[[Path], Iterator[Found]]
    find: Callable[[Path, str], Path | None] | None = None


def in_store(name: str) -> Path | None:
    """The path of a model named like `ollama:qwen3:4b`; None if no store has this prefix. Raises
    ModelNotFound if the store, or the model in it, is not there.
    """
    prefix, _, rest = name.partition(":")
    if (store := STORES.get(prefix)) is None or store.find is None or not rest:
        return None
    roots = [root for root in store.roots() if root.is_dir()]
    if not roots:
        looked = ", ".join(str(root) for root in store.roots())
        raise ModelNotFound(f"{name}: {store.title} keeps no models here; looked for {looked}")
    for root in roots:
        if path := store.find(root, rest):
            return path
    raise ModelNotFound(f"{name}: {store.title} has no such model{_suggest(prefix, name)}")


def _suggest(prefix: str, name: str) -> str:
    names = [found.name for found in list_models(prefix)]
    close = get_close_matches(name, names, 1)
    if close:
        return f" (did you mean {close[0]}?)"
    return f"; it has {', '.join(names)}" if names else ""


def list_models(prefix: str) -> list[Found]:
    """The models of a store, by name. What is broken is left out."""
    found = {}
    for root in STORES[prefix].roots():
        if root.is_dir():
            found.update({each.name: each for each in STORES[prefix].models(root)})
    return [found[name] for name in sorted(found)]


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # there is none
        return Path(os.sep)


# ------------------------------------------------------------------------------------------------ Ollama


def _ollama_roots() -> Iterator[Path]:
    if chosen := os.environ.get("OLLAMA_MODELS"):
        yield Path(chosen)
    else:
        yield _home() / ".ollama" / "models"
        yield Path("/usr/share/ollama/.ollama/models")  # of the service on Linux


def _ollama_models(root: Path) -> Iterator[Found]:
    for manifest in sorted((root / "manifests").rglob("*")):
        if not manifest.is_file():
            continue
        with suppress(ModelFileError, ModelNotFound, OSError, ValueError):
            host, *middle, tag = manifest.relative_to(root / "manifests").parts
            if host != _REGISTRY:
                middle = [host, *middle]
            elif middle[0] == "library":
                middle = middle[1:]
            path = _ollama_blob(root, manifest)
            yield Found(f"ollama:{'/'.join(middle)}:{tag}", path.stat().st_size, path)


def _ollama_find(root: Path, name: str) -> Path | None:
    match = _TAG.fullmatch(name)
    if match is None:
        return None
    parts = match["name"].split("/")
    if len(parts) < 3:  # without the host, perhaps without the owner
        parts = [_REGISTRY, *(["library"] if len(parts) == 1 else []), *parts]
    manifest = root.joinpath("manifests", *parts, match["tag"] or "latest")
    if any(part in (".", "..") for part in manifest.parts) or not manifest.is_file():
        return None
    return _ollama_blob(root, manifest)


def _ollama_blob(root: Path, manifest: Path) -> Path:
    """The GGUF file of a model. ModelNotFound if its weights are stored in another way, or are gone."""
    layers = read_json(manifest).get("layers")
    digests = [
        str(layer.get("digest", ""))
        for layer in (layers if isinstance(layers, list) else [])
        if isinstance(layer, dict) and layer.get("mediaType") == _MODEL_LAYER
    ]
    if len(digests) != 1 or not re.fullmatch(r"sha256:[0-9a-f]{64}", digests[0]):
        found = f"has {len(digests)} layers of type {_MODEL_LAYER}"
        raise ModelNotFound(f"{manifest}: {found}, expected one, a GGUF file")
    path = root / "blobs" / digests[0].replace(":", "-")
    if not path.is_file():
        raise ModelNotFound(f"{manifest}: its file {path} is missing: `ollama pull` fetches it again")
    return path


# ------------------------------------------------------------------------------------------------ LM Studio


def _lm_studio_roots() -> Iterator[Path]:
    home = _home()
    with suppress(OSError):
        yield Path((home / ".lmstudio-home-pointer").read_text().strip()) / "models"
    yield home / ".lmstudio" / "models"
    yield home / ".cache" / "lm-studio" / "models"  # of older versions


def _lm_studio_models(root: Path) -> Iterator[Found]:
    for folder in sorted(root.glob("*/*")):
        if folder.is_dir():
            name = f"lmstudio:{folder.parent.name}/{folder.name}"
            yield from _models_in(folder, name)


def _lm_studio_find(root: Path, name: str) -> Path | None:
    repo, _, part = name.partition(":")
    folder = root.joinpath(*repo.split("/"))
    if len(repo.split("/")) != 2 or ".." in folder.parts or not folder.is_dir():
        return None
    if not part:
        return folder
    files = [file for file in _gguf_names(folder) if part.lower() in file.lower()]
    return folder / files[0] if len(files) == 1 else None


# ------------------------------------------------------------------------------------------ Hugging Face


def _hugging_face_roots() -> Iterator[Path]:
    if chosen := os.environ.get("HF_HUB_CACHE"):
        yield Path(chosen)
    elif chosen := os.environ.get("HF_HOME"):
        yield Path(chosen) / "hub"
    else:
        cache = os.environ.get("XDG_CACHE_HOME") or _home() / ".cache"
        yield Path(cache) / "huggingface" / "hub"


def _hugging_face_models(root: Path) -> Iterator[Found]:
    for folder in sorted(root.glob("models--*")):
        name = folder.name.removeprefix("models--").replace("--", "/", 1)
        with suppress(OSError):
            revision = (folder / "refs" / "main").read_text().strip()
            yield from _models_in(folder / "snapshots" / revision, name)


def _models_in(folder: Path, name: str) -> Iterator[Found]:
    """The model of a folder with safetensors, or each of its GGUF files."""
    weights = list(folder.glob("model*.safetensors"))
    if weights and (folder / "config.json").is_file():
        yield Found(name, sum(file.stat().st_size for file in weights), folder)
        return
    files = _gguf_names(folder)
    for file in files:
        stem = re.sub(r"-\d{5}-of-\d{5}\.gguf$", "", file)
        parts = [folder / file] if stem == file else sorted(folder.glob(f"{stem}-*-of-*.gguf"))
        yield Found(f"{name}:{file}", sum(part.stat().st_size for part in parts), folder / file)


def _gguf_names(folder: Path) -> list[str]:
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf"))
    return name_models(filter(is_text_model, names))


STORES = {
    "ollama": Store("Ollama", _ollama_roots, _ollama_models, _ollama_find),
    "lmstudio": Store("LM Studio", _lm_studio_roots, _lm_studio_models, _lm_studio_find),
    "hf": Store("Hugging Face's cache", _hugging_face_roots, _hugging_face_models),
}
