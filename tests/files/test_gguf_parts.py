"""Models that the package `gguf` split into several files: they are read as if they were one."""

import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from airllm.architectures import config_of
from airllm.architectures.tensor_names import NamedTensors
from airllm.cli import commands
from airllm.convert.quantize import quantize
from airllm.files import ModelFileError, open_weights
from airllm.files.gguf import GgufFile
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory.weight_units import divide_weights
from tests.support.models import tiny_gguf, tiny_models

MODEL, COUNT = "llama3", 4


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return tiny_gguf.write_gguf(MODEL, tmp_path_factory.mktemp("whole") / "m.gguf", "blocks")


@pytest.fixture(scope="module")
def written(whole, tmp_path_factory) -> list[Path]:
    """The same model in parts."""
    most = -(-len(GgufFile(whole).names()) // COUNT)
    folder = tmp_path_factory.mktemp("parts")
    tiny_gguf.write_gguf(MODEL, folder / "m.gguf", "blocks", split_max_tensors=most)
    return [folder / f"m-0000{i + 1}-of-0000{COUNT}.gguf" for i in range(COUNT)]


@pytest.fixture
def parts(written, tmp_path) -> list[Path]:
    """A copy of the parts, to change."""
    return [Path(shutil.copy(path, tmp_path)) for path in written]


def logits(path: Path, **options) -> np.ndarray:
    with LayerWiseInferenceEngine(path, **options) as engine:
        return engine.forward(tiny_models.texts()[0], all_positions=True)


@pytest.mark.parametrize("given", range(COUNT))
def test_any_part_opens_the_whole_model(whole, written, given):
    with GgufFile(whole) as one, GgufFile(written[given]) as several:
        assert several.names() == one.names() and several.path == written[0]
        own = {key: value for key, value in several.metadata.items() if not key.startswith("split.")}
        assert repr(own) == repr(dict(one.metadata))
        assert len(several.maps()) == COUNT
        for name in one.names():
            expected, found = (
                np.asarray(getattr(f.tensor(name), "data", f.tensor(name))) for f in (one, several)
            )
            assert np.array_equal(found, expected), name
            span = several.span(name)
            assert bytes(span.map[span.start : span.start + span.nbytes]) == found.tobytes()


@pytest.mark.parametrize("backend", ("auto", "python"))
def test_the_logits_are_those_of_the_whole_file(whole, written, backend):
    assert np.array_equal(logits(written[2], backend=backend), logits(whole, backend=backend))


def test_a_folder_with_the_parts_of_one_model_is_that_model(whole, parts):
    folder = parts[0].parent
    assert np.array_equal(logits(folder), logits(whole))
    with open_weights(folder) as file:
        assert file.path == parts[0]
    shutil.copy(whole, folder / "m.gguf")
    with open_weights(folder) as file:
        assert file.path == folder / "m.gguf"  # the same model, joined
    shutil.copy(parts[0], folder / "other-00001-of-00002.gguf")
    with pytest.raises(
        ModelFileError, match="holds the GGUF files m.gguf, other-00001-of-00002.gguf, expected one"
    ):
        open_weights(folder)


def test_a_first_part_without_tensors(whole, tmp_path):
    tiny_gguf.write_gguf(MODEL, tmp_path / "m.gguf", "blocks", split_max_tensors=9, small_first_shard=True)
    first = min(tmp_path.iterdir())
    with GgufFile(first) as file:
        assert not file._parts[0].tensors
        units = divide_weights(NamedTensors(file, config_of(file)))
        assert {id(each.map) for each in units.files} == set(map(id, file.maps()))  # all can be released
    assert np.array_equal(logits(first), logits(whole))


def test_commands_take_a_part(whole, written, tmp_path, capsys):
    last = str(written[-1])
    outs = []
    for path in (str(whole), last):
        assert commands.main(["info", path, "--json"]) == 0
        outs.append(capsys.readouterr().out.replace(path, "PATH"))
        assert commands.main(["generate", path, "AB", "-n", "4", "-q"]) == 0
        outs.append(capsys.readouterr().out)
    assert outs[:2] == outs[2:]
    made = [quantize(path, tmp_path / f"{i}.gguf", "q8_0").path for i, path in enumerate((whole, written[1]))]
    assert made[0].read_bytes() == made[1].read_bytes()


def with_key(path: Path, key: str, value: int) -> None:
    reader = gguf.GGUFReader(path, "r+")
    reader.fields[key].parts[-1][0] = value
    reader.data.flush()


def remove_two(parts: list[Path]) -> None:
    parts[0].unlink()
    parts[2].unlink()


DAMAGE: dict[str, tuple[Callable[[list[Path]], object], str]] = {
    "missing": (
        remove_two,
        r"m-00002-of-00004.gguf is one of 4 parts and lacks m-00001-of-00004.gguf, m-00003-of-00004.gguf, "
        r"expected all parts in /",
    ),
    "another count": (
        lambda parts: with_key(parts[2], "split.count", 5),
        "m-00003-of-00004.gguf: key split.count has value 5, expected 4",
    ),
    "count of the given part": (
        lambda parts: with_key(parts[1], "split.count", 5),
        "m-00002-of-00004.gguf: key split.count has value 5, expected 4, by the file's name",
    ),
    "order": (
        lambda parts: shutil.copy(parts[3], parts[2]),
        r"m-00004-of-00004.gguf: tensor \S+ is also in m-00003-of-00004.gguf, expected each tensor in one",
    ),
    "number": (
        lambda parts: with_key(parts[3], "split.no", 2),
        "m-00004-of-00004.gguf: key split.no has value 2, expected 3",
    ),
    "tensors": (
        lambda parts: [with_key(path, "split.tensors.count", 999) for path in parts],
        r"m-00001-of-00004.gguf: key split.tensors.count has value 999, expected \d+",
    ),
    "cut short": (
        lambda parts: parts[3].write_bytes(parts[3].read_bytes()[:-99]),
        r"m-00004-of-00004.gguf: tensor \S+ takes bytes \d+ to \d+, expected an end within the file",
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_parts_that_do_not_belong_together(parts, what):
    damage, message = DAMAGE[what]
    damage(parts)
    with pytest.raises(ModelFileError, match=message):
        GgufFile(parts[1])


def test_a_part_under_another_name(parts):
    parts[0].rename(renamed := parts[0].with_name("model.gguf"))
    with pytest.raises(
        ModelFileError, match="model.gguf: key split.count has value 4, expected 1, by the file"
    ):
        GgufFile(renamed)
