"""Models in the stores of other programs: Ollama, LM Studio, Hugging Face's cache."""

import hashlib
import json
from pathlib import Path

import pytest

from airllm.cli.commands import main
from airllm.files.hub import ModelNotFound, locate
from airllm.files.open_weights import open_weights
from airllm.files.stores import list_models
from tests.support.models import tiny_gguf


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    for name in ("OLLAMA_MODELS", "HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AIRLLM_CACHE_DIR", str(tmp_path / "airllm"))
    return tmp_path


def add_to_ollama(root: Path, manifest: str, kind: str = "model") -> Path:
    """A model in Ollama's layout: a manifest, and a file with the name of its hash."""
    file = tiny_gguf.write_gguf("llama2", root.parent / "model.gguf")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    (root / "blobs").mkdir(parents=True, exist_ok=True)
    blob = file.rename(root / "blobs" / f"sha256-{digest}")
    path = root / "manifests" / manifest
    path.parent.mkdir(parents=True, exist_ok=True)
    layers = [{"mediaType": f"application/vnd.ollama.image.{each}", "digest": f"sha256:{digest}"}
              for each in ("license", kind)]  # fmt: skip
    path.write_text(json.dumps({"schemaVersion": 2, "config": {}, "layers": layers}))
    return blob


def test_ollama(home, monkeypatch):
    root = home / ".ollama" / "models"
    root.mkdir(parents=True)
    blob = add_to_ollama(root, "registry.ollama.ai/library/qwen3/4b")
    assert locate("ollama:qwen3:4b") == blob
    with open_weights(blob) as weights:
        assert "token_embd.weight" in weights
    add_to_ollama(root, "registry.ollama.ai/library/qwen3/latest")
    assert locate("ollama:qwen3") == blob
    add_to_ollama(root, "registry.ollama.ai/somebody/tiny/q8")
    assert locate("ollama:somebody/tiny:q8") == blob
    add_to_ollama(root, "hf.co/owner/repo-GGUF/Q4_K_M")
    assert locate("ollama:hf.co/owner/repo-GGUF:Q4_K_M") == blob
    names = ["ollama:hf.co/owner/repo-GGUF:Q4_K_M", "ollama:qwen3:4b", "ollama:qwen3:latest",
             "ollama:somebody/tiny:q8"]  # fmt: skip
    assert [each.name for each in list_models("ollama")] == names
    assert all(locate(name) == blob for name in names)
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "elsewhere"))
    with pytest.raises(ModelNotFound, match=r"Ollama keeps no models here; looked for .*elsewhere"):
        locate("ollama:qwen3:4b")


def test_what_ollama_does_not_have(home):
    root = home / ".ollama" / "models"
    root.mkdir(parents=True)
    blob = add_to_ollama(root, "registry.ollama.ai/library/qwen3/4b")
    with pytest.raises(ModelNotFound, match=r"8b: Ollama has no such model \(did you mean ollama:qw"):
        locate("ollama:qwen3:8b")
    with pytest.raises(ModelNotFound, match="no such model; it has ollama:qwen3:4b"):
        locate("ollama:../../x")
    add_to_ollama(root, "registry.ollama.ai/library/new/1b", kind="tensor")
    with pytest.raises(ModelNotFound, match=r"has 0 layers of type application/vnd.ollama.image.model"):
        locate("ollama:new:1b")
    blob.unlink()
    with pytest.raises(ModelNotFound, match="is missing: `ollama pull` fetches it again"):
        locate("ollama:qwen3:4b")
    assert list_models("ollama") == []


def test_lm_studio(home):
    folder = home / ".lmstudio" / "models" / "owner" / "tiny-GGUF"
    folder.mkdir(parents=True)
    file = tiny_gguf.write_gguf("llama2", folder / "tiny-Q4_K_M.gguf")
    (folder / "mmproj-tiny.gguf").write_bytes(b"")
    assert locate("lmstudio:owner/tiny-GGUF") == folder
    with open_weights(folder) as weights:
        assert weights.path == file
    tiny_gguf.write_gguf("llama2", folder / "tiny-Q8_0.gguf")
    assert locate("lmstudio:owner/tiny-GGUF:q4_k") == file
    names = ["lmstudio:owner/tiny-GGUF:tiny-Q4_K_M.gguf", "lmstudio:owner/tiny-GGUF:tiny-Q8_0.gguf"]
    assert [each.name for each in list_models("lmstudio")] == names
    with pytest.raises(ModelNotFound, match="LM Studio has no such model"):
        locate("lmstudio:owner/other")
    (home / ".lmstudio-home-pointer").write_text(f"{home / 'moved'}\n")
    (home / ".lmstudio").rename(home / "moved")
    assert locate("lmstudio:owner/tiny-GGUF:q4_k") == home / "moved/models/owner/tiny-GGUF/tiny-Q4_K_M.gguf"


def test_models_are_listed(home, capsys, monkeypatch):
    hub = home / ".cache" / "huggingface" / "hub"
    for repo, names in (("owner--folder", ["config.json", "model.safetensors"]),
                        ("owner--files", ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"]),
                        ("owner--no-weights", ["config.json"])):  # fmt: skip
        snapshot = hub / f"models--{repo}" / "snapshots" / "abc"
        snapshot.mkdir(parents=True)
        for name in names:
            (snapshot / name).write_bytes(bytes(1000))
        (hub / f"models--{repo}" / "refs").mkdir()
        (hub / f"models--{repo}" / "refs" / "main").write_text("abc")
    assert main(["models", "--json"]) == 0
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert found.keys() == {"owner/folder", "owner/files:a-00001-of-00002.gguf"}
    assert found["owner/files:a-00001-of-00002.gguf"]["nbytes"] == 2000
    assert found["owner/folder"]["store"] == "hf"
    assert main(["models"]) == 0
    text = capsys.readouterr().out
    assert "Ollama: none" in text and "Hugging Face's cache:\n" in text and "  owner/folder" in text
    monkeypatch.setenv("HF_HOME", str(home / "empty"))
    assert main(["models"]) == 0
    assert "Hugging Face's cache: none" in capsys.readouterr().out
