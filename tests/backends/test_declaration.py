"""Backends come in by one door: what they declare is all that the rest of the product knows of them."""

import ast
import dataclasses
import json
import re
import shutil
import sys
import zipfile
from pathlib import Path

import checkouts
import pytest
from documents import blocks
from test_cpp_registry import compiler

from airllm import extras
from airllm.backends import BackendPreference, config, registry
from airllm.backends.declaration import Declaration, all_declarations, function, shipped
from cpp_ext.commands import CommandError, recipes, write_backends

ROOT = checkouts.ROOT
LANGUAGES = ("cpp", "python")  # words of a language too: only where they stand alone are they a backend
# Files that name backends of which they are not, and why they may.
PRODUCT = (
    r"airllm/.*\.py",
    r"cpp_ext/(commands|program|include|cmake)/.*",
    r"\.ci/.*",
    r"setup\.py|detect_and_benchmark\.py|pyproject\.toml|MANIFEST\.in|Makefile|\.gitignore|backend\.json",
)
MENTIONS = {
    "airllm/ops/dlpack.py": ({"cuda", "opencl", "rocm", "webgpu"}, "DLPack's words for where an array lies"),
    "airllm/backends/api/discovery.py": (
        {"cpp", "cuda", "opencl", "rocm", "webgpu"},
        "BackendPreference: type checkers know the members of an enum by its text alone",
    ),
    "airllm/bench/measure.py": ({"python"}, "the interpreter, of which reports have the version"),
    "airllm/bench/report.py": ({"python"}, "the interpreter"),
    "detect_and_benchmark.py": ({"python"}, "the interpreter, in the command that was typed"),
    "airllm/files/published/methods.py": ({"mlx"}, "what wrote a folder, in its config.json"),
    "cpp_ext/commands/build_hip.py": ({"rocm"}, "the command has AMD's word for its compiler"),
    "cpp_ext/commands/rocm_build.py": ({"cuda"}, "it compiles the sources of that backend"),
    "pyproject.toml": ({"cpp", "mlx", "opencl", "webgpu"}, "extras, and mypy's list: TOML has no other form"),
    "backend.json": ({"cpp", "cuda", "opencl", "python"}, "what configure_backend --reset writes"),
    ".ci/run": ({"cuda"}, "the name of a package that pip installs"),
    ".gitignore": ({"cpp"}, "the note that an install without a compiler leaves"),
    "Makefile": ({"cpp"}, "the same note"),
}
LISTS = """
from airllm import backends, tensor_ops
backends.list_backends(verbose=True)
backends.print_backend_summary()
tensor_ops.print_backend_info()
"""


# ---- no other file knows a backend by its name ----


def sources():
    """The text of the product and its build, but for the kernels."""
    made = {path.relative_to(ROOT) for path in write_backends.written()}
    return [path for path in map(Path, checkouts.files()) if is_product(path) and path not in made]


def is_product(path):
    return path.suffix != ".pyc" and any(re.fullmatch(each, path.as_posix()) for each in PRODUCT)


def named_in(path):
    """The backends that a file names, but for that of which it is."""
    own = set(re.findall("[a-z0-9]+", path.stem))  # cuda_build.py is of cuda
    return {name for text in {*texts(path)} for name in find_names(text)} - own


def texts(path):
    """The identifiers and strings of a program, but for docstrings; of other text all but comments."""
    text = path.read_text()
    if path.suffix == ".py":
        return texts_of_python(text)
    comment = "//.*" if path.suffix in (".cpp", ".h") else r"(?m)(^|\s)#\s.*"
    left = re.sub(comment, "", text)
    return [*re.findall(r"""["']([^"'\n]*)["']""", left), left]


def texts_of_python(text):
    nodes = list(ast.walk(ast.parse(text)))
    first = [node.body[0] for node in nodes if isinstance(getattr(node, "body", None), list) and node.body]
    documentation = {id(node.value) for node in first if isinstance(node, ast.Expr)}
    fields = (value for node in nodes if id(node) not in documentation for _, value in ast.iter_fields(node))
    return [value for value in fields if isinstance(value, str)]


def find_names(text):
    """The backends that a text names: by a word of it, all of it, or their modules."""
    words = {*re.findall("[a-z0-9]+", text.lower())} - {*LANGUAGES} | {text}
    return {name for name, own in shipped().items() if name in words or own.module and own.module in text}


def test_no_other_file_knows_a_backend_by_its_name():
    found = {str(path): names for path in sources() if (names := named_in(ROOT / path))}
    assert found == {path: names for path, (names, _) in MENTIONS.items()}


def test_the_lists_of_cpp_programs_are_those_of_the_declarations():
    for path, text in write_backends.written().items():
        assert path.read_text() == text, "python setup.py write_backends"


def test_a_value_of_a_type_of_cpp_programs_is_of_one_backend():
    without = {"cpp": Declaration(name_in_cpp="cpu"), "new": Declaration()}
    numbers = {**without, "cuda": Declaration(number_in_cpp=7), "mlx": Declaration(number_in_cpp=1)}
    places = write_backends.numbered(numbers)
    assert [(number, name) for number, (name, _) in places.items()] == [
        (1, "mlx"),
        (7, "cuda"),
        (8, "cpp"),
        (9, "new"),
    ]
    assert "  CPU = 8,\n  NEW = 9,\n  ADDED = 10,\n" in write_backends.types(places)
    with pytest.raises(CommandError, match="mlx has number_in_cpp=7, which cuda has too"):
        write_backends.numbered({**numbers, "mlx": Declaration(number_in_cpp=7)})


def extras_beside(backends):
    """Extras that pyproject.toml or a backend alone has, and those of backends that `test` leaves out."""
    text = (ROOT / "pyproject.toml").read_text()
    section = text.partition("[project.optional-dependencies]\n")[2].partition("\n\n")[0]
    packages = dict(re.findall(r"^(\w+) = (\[(?:.|\n)*?\])$", section, re.MULTILINE))
    named = re.findall(r"airllm-tensor-ops\[(.*?)\]", packages["all"] + packages["test"])
    tested = {extra for names in named for extra in names.split(",")}
    declared = {own.extra for own in backends.values() if own.extra}
    return {*packages} - {*extras.MODULES, "all", "docs", "test", "lint"} ^ declared | declared - tested


def test_extras_are_those_that_backends_declare():
    assert not extras_beside(shipped())
    for name, extra in (("opencl", "opencl"), ("mlx", "mlx")):
        assert extras_beside({**shipped(), name: Declaration()}) == {extra}
    assert extras_beside({**shipped(), "new": Declaration(extra="tpu")}) == {"tpu"}


def test_mypy_is_told_of_no_other_kernels():
    """Of those that it must be told of, it says so itself."""
    told = re.findall(r'"(tensor_ops_\w+)', (ROOT / "pyproject.toml").read_text())
    assert told and {*told} <= {own.module for own in shipped().values()}


def test_every_preference_is_a_name_that_is_known():
    for each in BackendPreference:
        assert config.is_auto(each.value) or config.canonical_name(each.value), each


def test_ci_tries_the_drivers_of_declared_backends():
    programs = {path.stem for path in (ROOT / ".ci" / "drivers").iterdir()}
    assert programs and all(shipped()[name].extra for name in programs)
    assert "python .ci/drivers.py required" in (ROOT / ".ci" / "run").read_text()


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
config.load(), config.known_names(), config.canonical_name("cpu")
print([name for name in sys.modules if name == "numpy" or name.startswith("tensor_ops_")])
"""
    answer = checkouts.run([sys.executable, "-c", code], ROOT)
    assert answer.stdout == "[]\n", checkouts.output_of(answer)


# ---- of this tree ----


@pytest.fixture
def checkout(tmp_path):
    return checkouts.copy(tmp_path / "checkout")


def run_python(checkout, *command, **changes):
    answer = checkouts.run([sys.executable, *command], checkout, **{"AIRLLM_TUNING": "off", **changes})
    assert answer.returncode == 0, checkouts.output_of(answer)
    return answer.stdout


def test_the_guides_backend_as_one_of_this_tree_is_known_everywhere(checkout):
    """By its two files: in lists, configuration, capabilities, checks, figures, plots, `airllm tune` and what
    CI requires; by the command of the guide in the registry of C++ programs.
    """
    write_the_guides_backend(checkout)
    assert "✓ careful, exact: Careful (CPU)" in run_python(checkout, "-c", LISTS, PYTHONIOENCODING="utf-8")
    shown = run_python(checkout, "setup.py", "configure_backend", "--backend=Exact")
    assert "Preferred backend: careful" in shown
    tuning, page = checkout / "tuning.json", checkout / "benchmark_report" / "report.html"
    options = "--quick --no-build --no-real-data --tune --ops silu --sizes 1x64 --backends exact,numpy"
    run_python(checkout, "detect_and_benchmark.py", *options.split(), AIRLLM_TUNING=str(tuning))
    result = json.loads(page.with_suffix(".json").read_text())
    assert re.search(r"^careful +yes +yes +NumPy in float64$", result["capabilities"], re.MULTILINE)
    for part, key in (("backends", "name"), ("tests", "backend"), ("speed", "implementation")):
        assert {each[key] for each in result[part]} >= {"careful", "python"}
    assert "#5b8c3a" in page.read_text()
    assert set(json.loads(tuning.read_text())["machine"]["backends"]) == {"careful", "python"}
    assert "careful" in run_python(checkout, ".ci/drivers.py", "required").strip().split(",")
    members = (
        "int(BackendType::CAREFUL) == 7",
        "int(BackendType::ADDED) == 8",
        "int(BackendType::PYTHON) == 5",
    )
    check_compiles(checkout, *members, 'has("careful")', 'means("exact", "careful")', 'means("cpp", "cpu")')


def write_the_guides_backend(checkout):
    """The files of a backend of this tree, and what the guide says to run then."""
    code = [text for _, text in blocks("BACKEND_GUIDE.md", "python")]
    (text,) = (text for text in code if "BACKEND = " in text)
    (kernels,) = (text for text in code if "def device" in text)
    (checkout / "airllm" / "backends" / "shipped" / "careful.py").write_text(text)
    (checkout / "cpp_ext" / "tensor_ops_careful.py").write_text(kernels)
    assert len(run_python(checkout, "setup.py", "write_backends").splitlines()) == 2


def test_the_guides_backend_as_one_of_this_tree_is_in_its_wheel(checkout, tmp_path):
    write_the_guides_backend(checkout)
    names = in_wheel(checkout, tmp_path)
    assert {"tensor_ops_careful.py", "airllm/backends/shipped/careful.py"} <= names


def in_wheel(checkout, folder):
    """The files of the wheel of a checkout, in which nothing can be compiled."""
    options = ("--disable-pip-version-check", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder))
    run_python(checkout, "-m", "pip", "wheel", *options, str(checkout), CXX="/nowhere/c++")
    (wheel,) = folder.glob("*.whl")
    return {*zipfile.ZipFile(wheel).namelist()}


PROGRAM = """
#include <airllm/backend/backends.h>
#define cpu airllm_cpu
#include "{backend}/shipped.h"
#include <string_view>
using namespace airllm::backend;
constexpr bool has(std::string_view name) {{
  for (const Shipped& each : kShipped)
    if (name == each.name) return true;
  return false;
}}
constexpr bool means(std::string_view alias, std::string_view name) {{
  for (const Alias& each : kAliases)
    if (alias == each.alias && name == each.name) return true;
  return false;
}}
static_assert({conditions});
"""


def check_compiles(checkout, *conditions):
    """Of the constants of C++ programs these conditions hold, and the registry compiles with them.
    Its kernels are not concerned, so one instruction set is enough.
    """
    backend = checkout / "cpp_ext" / "program"
    program = checkout / "program.cpp"
    program.write_text(PROGRAM.format(backend=backend, conditions=" && ".join(conditions)))
    quick = ["-std=c++17", "-fsyntax-only", "-Wall", "-DAIRLLM_PLAIN_VECTORS"]
    command = [compiler(), *quick, f"-I{checkout}/cpp_ext/include"]
    answer = checkouts.run([*command, str(program), str(backend / "backends.cpp")], checkout)
    assert answer.returncode == 0, checkouts.output_of(answer)


GONE = ("opencl", "webgpu")


@pytest.fixture
def less(checkout):
    """A checkout without the files of two backends, and what is written of declarations written again."""
    for name in GONE:
        (checkout / "airllm" / "backends" / "shipped" / f"{name}.py").unlink()
        shutil.rmtree(checkout / "cpp_ext" / f"tensor_ops_{name}")
        for path in (checkout / "cpp_ext" / "commands").glob(f"*{name}*"):
            path.unlink()
        (checkout / ".ci" / "drivers" / f"{name}.py").unlink()
    run_python(checkout, "setup.py", "write_backends")
    run_python(checkout, "setup.py", "configure_backend", "--reset")
    return checkout


def test_without_their_own_files_backends_are_nowhere(less):
    for command in (("-c", LISTS), ("setup.py", "test_capabilities")):
        lines = run_python(less, *command, PYTHONIOENCODING="utf-8", PATH="/nowhere").splitlines()
        mentions = [line for line in lines if re.match(rf"(✓|✗)? *({'|'.join(GONE)})\b", line, re.IGNORECASE)]
        assert lines and not mentions
    assert run_python(less, ".ci/drivers.py", "required") == "mlx,cpp\n"
    assert not {*GONE} & set(" ".join(run_python(less, ".ci/drivers.py", "packages")).split())


def test_without_their_own_files_no_text_of_the_product_has_their_names(less):
    """But for what MENTIONS lists. Others keep their values in C++, where the registry compiles."""
    files = [path.relative_to(less) for path in less.rglob("*") if path.is_file()]
    product = [path for path in files if is_product(path)]
    found = {str(path): {*GONE} & named_in(less / path) for path in product}
    allowed = {path: {*GONE} & names for path, (names, _) in MENTIONS.items() if path != "backend.json"}
    assert {path: names for path, names in found.items() if names} == {p: n for p, n in allowed.items() if n}
    assert {Path("cpp_ext/program/shipped.h"), Path("pyproject.toml"), Path(".ci/run")} <= {*product}
    values = "int(BackendType::MLX) == 3", "int(BackendType::PYTHON) == 5", "int(BackendType::ADDED) == 7"
    check_compiles(less, *values, '!has("opencl")', 'has("mlx")')


def test_without_their_own_files_nothing_of_backends_is_in_the_wheel(less, tmp_path):
    names = in_wheel(less, tmp_path)
    assert "tensor_ops_mlx/__init__.py" in names
    assert not [name for name in names if any(each in name for each in (*GONE, "gpu_kernels"))]


# ---- of other distributions ----


OTHER = """
from airllm.backends.declaration import Declaration
from airllm.backends.config_schema import Wrong

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
    order = config.expand_order(config.IN_ORDER)
    assert order[order.index("Tpu") - 1 :][:3] == ("webgpu", "Tpu", "cpp")
    assert config.expand_order(("cpp", "python")) == ("cpp", "python")
    assert config.canonical_name("Tensors") == "Tpu" and "tensors = Tpu" in str(
        assert_refused(config.canonical_name, "x")
    )
    assert (
        all_declarations()["Tpu"].packages == ("other",)
        and all_declarations()["bare"].module == "other_kernels"
    )
    assert registry.open_backend("tensors").why_not == "No module named 'other_kernels' (pip install other)"
    assert registry.open_backend("bare").why_not == "No module named 'other_kernels'"


def test_another_distributions_key_is_checked_as_it_says(other):
    file = other / "backend.json"
    file.write_text('{"tpu_chip": 3}')
    assert config.read(file).own == {"tpu_chip": 3}
    file.write_text('{\n"tpu_chip": "x"}')
    assert f"{file}:2: tpu_chip has 'x', expected a whole number" == str(assert_refused(config.read, file))
    file.write_text('{"tpu_chips": 3}')
    assert "unknown key 'tpu_chips', expected 'tpu_chip'" in str(assert_refused(config.read, file))


def test_a_declaration_that_cannot_be_read_is_a_backend_that_does_not_run_and_says_why(other):
    assert registry.open_backend("missing").why_not == "module 'other' has no attribute 'NONE'"
    expected = "expected an airllm.backends.declaration.Declaration"
    assert registry.open_backend("wrong").why_not == f"other:NUMBER is a int, {expected}"
    assert config.known_names()[-3:] == ("bare", "missing", "wrong")


def assert_refused(function, value):
    with pytest.raises(config.ConfigError) as error:
        function(value)
    return error.value
