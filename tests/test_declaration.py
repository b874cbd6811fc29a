"""Backends come in by one door: what they declare is all that the rest of the product knows of them."""

import ast
import dataclasses
import json
import re
import shutil
import sys

import checkouts
import pytest
from test_docs import blocks

from airllm.backends import config, registry
from airllm.backends.declaration import Declaration, declared, function, shipped
from cpp_ext.commands import recipes

ROOT = checkouts.ROOT
LANGUAGES = ("cpp", "python")  # words of a language too: only where they stand alone are they a backend
# Files that name backends of which they are not, and why they may.
MENTIONS = {
    "airllm/arrays.py": ({"cuda", "opencl", "webgpu"}, "DLPack's words for where an array lies"),
    "airllm/backends/absent.py": ({"cuda", "mlx", "opencl"}, "what stands for names of other systems"),
    "airllm/backends/discovery.py": (
        {"cpp", "cuda", "opencl", "webgpu"},
        "BackendPreference, whose members a guide promises",
    ),
    "airllm/measure.py": ({"python"}, "the interpreter, of which reports have the version"),
    "airllm/report.py": ({"python"}, "the interpreter"),
    "detect_and_benchmark.py": ({"python"}, "the interpreter, in the command that was typed"),
}
LISTS = """
from airllm import backends, tensor_ops
backends.list_backends(verbose=True)
backends.print_backend_summary()
tensor_ops.print_backend_info()
"""


# ---- no other file knows a backend by its name ----


def sources():
    folders = (ROOT / "airllm").rglob("*.py"), (ROOT / "cpp_ext" / "commands").glob("*.py")
    return [*(path for each in folders for path in each), ROOT / "setup.py", ROOT / "detect_and_benchmark.py"]


def texts(path):
    """The identifiers and strings of a program, but for docstrings."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    first = [node.body[0] for node in nodes if isinstance(getattr(node, "body", None), list) and node.body]
    documentation = {id(node.value) for node in first if isinstance(node, ast.Expr)}
    fields = (value for node in nodes if id(node) not in documentation for _, value in ast.iter_fields(node))
    return [value for value in fields if isinstance(value, str)]


def named(text):
    """The backends that a text names: by a word of it, all of it, or their modules."""
    words = {*re.findall("[a-z0-9]+", text.lower())} - {*LANGUAGES} | {text}
    return {name for name, own in shipped().items() if name in words or own.module and own.module in text}


def test_no_other_file_knows_a_backend_by_its_name():
    found = {}
    for path in sources():
        own = set(re.findall("[a-z0-9]+", path.stem))  # cuda_build.py is of cuda
        if foreign := {name for text in texts(path) for name in named(text)} - own:
            found[str(path.relative_to(ROOT))] = foreign
    assert found == {path: names for path, (names, _) in MENTIONS.items()}


def test_what_declarations_refer_to_is_there():
    references = [
        reference
        for own in shipped().values()
        for reference in (*own.keys.values(), *own.options.values(), *filter(None, [own.threads]))
    ]
    assert len(references) == 4 and all(callable(function(each)) for each in references)
    assert all(recipe.COMMAND and recipe.tools for recipe in recipes.recipes().values())
    assert len({own.colour for own in shipped().values()}) == len(shipped())
    assert not any(alias in shipped() for own in shipped().values() for alias in own.aliases)


def test_the_guide_has_every_field():
    section = (
        (ROOT / "BACKEND_GUIDE.md").read_text().partition("| Field | What it says |")[2].partition("\n\n")[0]
    )
    rows = re.findall(r"^\| (`.*?`) \| ", section, re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert documented == {field.name for field in dataclasses.fields(Declaration)} - {"broken"}


def test_declarations_load_no_kernels():
    code = """
import sys
from airllm.backends import config
config.load(), config.known_names(), config.canonical("cpu")
print([name for name in sys.modules if name == "numpy" or name.startswith("tensor_ops_")])
"""
    answer = checkouts.run([sys.executable, "-c", code], ROOT)
    assert answer.stdout == "[]\n", checkouts.said(answer)


# ---- of this tree ----


@pytest.fixture
def checkout(tmp_path):
    return checkouts.copy(tmp_path / "checkout")


def told(checkout, *command, **changes):
    answer = checkouts.run([sys.executable, *command], checkout, **{"AIRLLM_TUNING": "off", **changes})
    assert answer.returncode == 0, checkouts.said(answer)
    return answer.stdout


def test_the_guides_backend_as_one_of_this_tree_is_known_everywhere(checkout):
    """By its two files: in lists, configuration, capabilities, checks, figures, plots and `airllm tune`."""
    code = [text for _, text in blocks("BACKEND_GUIDE.md", "python")]
    (text,) = (text for text in code if "BACKEND = " in text)
    (kernels,) = (text for text in code if "def device" in text)
    (checkout / "airllm" / "backends" / "shipped" / "careful.py").write_text(text)
    (checkout / "cpp_ext" / "tensor_ops_careful.py").write_text(kernels)
    assert "✓ careful, exact: Careful (CPU)" in told(checkout, "-c", LISTS, PYTHONIOENCODING="utf-8")
    shown = told(checkout, "setup.py", "configure_backend", "--backend=Exact")
    assert "Preferred backend: careful" in shown
    tuning, page = checkout / "tuning.json", checkout / "benchmark_report" / "report.html"
    options = "--quick --no-build --no-real-data --tune --ops silu --sizes 1x64 --backends exact,numpy"
    told(checkout, "detect_and_benchmark.py", *options.split(), AIRLLM_TUNING=str(tuning))
    result = json.loads(page.with_suffix(".json").read_text())
    assert re.search(r"^careful +yes +yes +NumPy in float64$", result["capabilities"], re.MULTILINE)
    for part, key in (("backends", "name"), ("tests", "backend"), ("speed", "implementation")):
        assert {each[key] for each in result[part]} >= {"careful", "python"}
    assert "#5b8c3a" in page.read_text()
    assert set(json.loads(tuning.read_text())["machine"]["backends"]) == {"careful", "python"}


def test_without_their_own_files_backends_are_nowhere(checkout):
    gone = ("opencl", "webgpu")
    for name in gone:
        (checkout / "airllm" / "backends" / "shipped" / f"{name}.py").unlink()
        shutil.rmtree(checkout / "cpp_ext" / f"tensor_ops_{name}")
        for path in (checkout / "cpp_ext" / "commands").glob(f"*{name}*"):
            path.unlink()
    told(checkout, "setup.py", "configure_backend", "--reset")  # the file, as shipped, names one of them
    for command in (("-c", LISTS), ("setup.py", "test_capabilities")):
        lines = told(checkout, *command, PYTHONIOENCODING="utf-8", PATH="/nowhere").splitlines()
        mentions = [line for line in lines if re.match(rf"(✓|✗)? *({'|'.join(gone)})\b", line, re.IGNORECASE)]
        assert lines and not mentions


# ---- of other distributions ----


OTHER = """
from airllm.backends.declaration import Declaration
from airllm.backends.values import Wrong

def whole(value):
    if type(value) is not int:
        raise Wrong(value, f"has {value!r}, expected a whole number")
    return value

BACKEND = Declaration(
    module="other_kernels",
    rank=45,
    aliases=("tensors",),
    remedy="pip install other",
    keys={"tpu_chip": "other:whole"},
)
NUMBER = 7
"""
ENTRIES = """[airllm.backends]
Tpu = other:BACKEND
missing = other:NONE
wrong = other:NUMBER
bare = other_kernels
"""


@pytest.fixture
def other(tmp_path, monkeypatch):
    """A distribution with an entry that declares something, one that does not, two that cannot be read."""
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    (tmp_path / "other.py").write_text(OTHER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_opened", dict(registry._opened))
    yield tmp_path
    sys.modules.pop("other", None)


def test_another_distribution_declares_what_a_backend_of_the_tree_does(other):
    order = config.in_full(config.IN_ORDER)
    assert order[order.index("Tpu") - 1 :][:3] == ("webgpu", "Tpu", "cpp")
    assert config.in_full(("cpp", "python")) == ("cpp", "python")
    assert config.canonical("Tensors") == "Tpu" and "tensors = Tpu" in str(refused(config.canonical, "x"))
    assert declared()["Tpu"].packages == ("other",) and declared()["bare"].module == "other_kernels"
    assert registry.opened("tensors").why_not == "No module named 'other_kernels' (pip install other)"
    assert registry.opened("bare").why_not == "No module named 'other_kernels'"


def test_another_distributions_key_is_checked_as_it_says(other):
    file = other / "backend.json"
    file.write_text('{"tpu_chip": 3}')
    assert config.read(file).own == {"tpu_chip": 3}
    file.write_text('{\n"tpu_chip": "x"}')
    assert f"{file}:2: tpu_chip has 'x', expected a whole number" == str(refused(config.read, file))
    file.write_text('{"tpu_chips": 3}')
    assert "unknown key 'tpu_chips', expected 'tpu_chip'" in str(refused(config.read, file))


def test_a_declaration_that_cannot_be_read_is_a_backend_that_does_not_run_and_says_why(other):
    assert registry.opened("missing").why_not == "module 'other' has no attribute 'NONE'"
    expected = "expected an airllm.backends.declaration.Declaration"
    assert registry.opened("wrong").why_not == f"other:NUMBER is a int, {expected}"
    assert config.known_names()[-3:] == ("bare", "missing", "wrong")


def refused(function, value):
    with pytest.raises(config.ConfigError) as error:
        function(value)
    return error.value
