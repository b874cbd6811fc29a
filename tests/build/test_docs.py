"""The documentation's examples, run as they stand."""

import contextlib
import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import documents
import pytest
from documents import blocks, examples
from environment import REQUIRED

from airllm.architectures import all_architectures, table
from airllm.backends import available, open_backend
from airllm.backends.config_schema import BUILT_IN
from airllm.backends.declaration import shipped
from airllm.files import smollm2
from airllm.formats import FORMATS

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "BACKEND_GUIDE.md", "BACKEND_CONFIG.md", "SERVER_GUIDE.md")
PAGES = tuple(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md")))
WITH_EXAMPLES = (*DOCUMENTS, *(page for page in PAGES if blocks(page, "python")))


def here():
    """What examples may need: backends, and the model that they load."""
    with contextlib.suppress(smollm2.Unavailable):
        smollm2.fetch(timeout=240)
        return [*available(), "smollm2"]
    return available()


def python(code, cwd, **environment):
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, **environment}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=cwd, capture_output=True, text=True, env=environment
    )


@pytest.mark.parametrize("document", [name for name in WITH_EXAMPLES if name != "README.md"])
def test_python_examples_run_and_print_what_the_page_says(document):
    """All of a page's examples in one interpreter, in order, as a reader would; `...` stands for any text.
    README.md's run from the wheel: tests/build/test_wheel.py.
    """
    found = [(code, printed) for needs, code, printed in examples(document) if not needs or needs in here()]
    if not found and "real-data" not in REQUIRED:
        pytest.skip(f"all examples of {document} need the model")
    assert found, f"{document} has no examples"
    end = "-- end of an example --"
    done = python("\n".join(f"{code}\nprint({end!r}, flush=True)" for code, _ in found), ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    for (code, expected), actual in zip(found, done.stdout.split(f"{end}\n"), strict=False):
        same = doctest.OutputChecker().check_output(expected, actual, doctest.ELLIPSIS)
        assert not expected or same, f"{document}:\n{code}prints\n{actual}, the page says\n{expected}"


@pytest.mark.parametrize("document", WITH_EXAMPLES)
def test_examples_of_backends_that_are_not_here_are_at_least_python(document):
    for needs, text in blocks(document, "python"):
        compile(text, f"{document}, needs {needs}", "exec")


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", *PAGES]
)
def test_links_and_named_paths_exist(document):
    text = (ROOT / document).read_text()
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", documents.BLOCK.sub("", text)):
        assert ((ROOT / document).parent / target).exists() or target.startswith("plots/"), (
            f"{document} links {target}"
        )
    for path in re.findall(r"`((?:airllm|cpp_ext|tests|benchmarks|examples)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), f"{document} names {path}"


def test_every_environment_variable_that_is_read_is_in_the_guides_table():
    files = [path for folder in ("airllm", "cpp_ext") for path in (ROOT / folder).rglob("*.*")]
    texts = [path.read_text() for path in files if path.suffix in (".py", ".cpp", ".h", ".cu", ".inl")]
    read = {
        name for text in texts for name in re.findall(r"\"(AIRLLM_[A-Z_]+|NVCC_CCBIN|[A-Z]+FLAGS)\"", text)
    }
    table = re.findall(r"^\| (`[A-Z].*?) \|", (ROOT / "BACKEND_GUIDE.md").read_text(), re.MULTILINE)
    documented = {name for row in table for name in re.findall(r"`([A-Z_]+)", row)}
    assert {"AIRLLM_BACKEND", "AIRLLM_NVCC"} <= read and read <= documented, read - documented


def test_the_guides_backend_works_as_a_package(tmp_path):
    """The worked example of another distribution's backend: installed, known by name, and used."""
    (project,) = (text for _, text in blocks("BACKEND_GUIDE.md", "toml"))
    examples = [text for _, text in blocks("BACKEND_GUIDE.md", "python")]
    (declaration,) = (text for text in examples if "BACKEND = " in text)
    (kernels,) = (text for text in examples if "def device" in text)
    source, site = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    (source / "pyproject.toml").write_text(project)
    (source / "airllm_careful.py").write_text(declaration)
    (source / "tensor_ops_careful.py").write_text(kernels)
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*install, "--target", str(site), str(source)], check=True)
    code = """
import numpy as np
from airllm import backends, tensor_ops
assert tensor_ops.get_backend() == "careful", tensor_ops.get_backend()
x = np.linspace(-3, 3, 7, dtype=np.float32)
assert np.array_equal(tensor_ops.silu(x[::-1]), tensor_ops.silu(x)[::-1])
assert np.allclose(tensor_ops.gelu(x), tensor_ops.gelu(x, backend="python"))
tensor_ops.print_backend_info()
backends.list_backends(verbose=True)
"""
    paths = os.pathsep.join([str(site), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = python(code, tmp_path, PYTHONPATH=paths, AIRLLM_BACKEND="Exact")
    assert done.returncode == 0 and "careful    available: NumPy in float64" in done.stdout, done.stderr
    assert re.search(r"^. careful, exact: Careful \(CPU\)$", done.stdout, re.MULTILINE), done.stdout


def test_the_environment_variables_of_the_guide_are_those_of_the_code():
    kinds = {".py", ".h", ".cpp", ".cu", ".inl"}
    files = [f for folder in ("airllm", "cpp_ext") for f in (ROOT / folder).rglob("*") if f.suffix in kinds]
    read = r"""(?:environ(?:\.get)?[\[(]|getenv\()\s*["'](AIRLLM_\w+)"""
    used = {name for file in files for name in re.findall(read, file.read_text())}
    documented = set(re.findall(r"AIRLLM_\w+", "".join((ROOT / name).read_text() for name in DOCUMENTS)))
    assert used and used <= documented, used - documented


def test_the_formats_of_the_readme_are_those_that_are_read():
    rows = [
        f"| `{each.name}` | {8 * each.bytes / each.values:g} | {'yes' if each.pack else 'no'} |"
        for each in FORMATS.values()
    ]
    listed = (ROOT / "README.md").read_text().partition("multiplied as they are stored:")[2].split("\n\n")[1]
    assert listed.splitlines()[2:] == rows


def test_the_models_of_the_readme_are_those_that_run():
    rows = [f"| {' | '.join(row)} |" for row in table()]
    listed = (ROOT / "README.md").read_text().partition("These models run")[2].split("\n\n")[1].splitlines()
    assert listed[2:] == rows
    assert all(
        name in listed[i] for i, each in enumerate(all_architectures(), 2) for name in (each.title, each.name)
    )


ROW = r"^\| `(\w+)` \| "
# Where documents list the backends, each in its own words: the text before a list and after it, and a place.
LISTS = (
    ("README.md", "## Backends\n", "\n## ", ROW),
    ("BACKEND_GUIDE.md", "## The backends\n", "\n## ", r"^\d\. `(\w+)`: "),
    ("BACKEND_CONFIG.md", '| `preferred_backend` | `"auto"`', " | ", r', `"(\w+)"`'),
)


@pytest.mark.parametrize(("document", "before", "after", "place"), LISTS, ids=[each[0] for each in LISTS])
def test_backends_are_listed_as_they_are_declared(document, before, after, place):
    section = (ROOT / document).read_text().partition(before)[2].partition(after)[0]
    listed = re.findall(place, section, re.M)
    assert listed == list(BUILT_IN) and all(open_backend(name).name == name for name in listed)


def test_there_is_a_row_for_each_backend_that_can_be_got():
    section = (
        (ROOT / "BACKEND_CONFIG.md").read_text().partition("| Build it with |\n")[2].partition("\n\n")[0]
    )
    assert {*re.findall(ROW, section, re.M)} == {name for name, own in shipped().items() if own.how_to_get()}
