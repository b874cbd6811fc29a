"""One declaration an op: what compiled backends and C++ programs have of it is held against tensor_ops.py."""

import inspect
import re
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import checkouts
import pytest
from cuda_on_host import build
from documents import blocks
from environment import REQUIRED

from airllm import tensor_ops
from airllm.backends import config, open_backend
from airllm.ops import signature_codegen
from airllm.ops.op import OPS
from cpp_ext.commands import compiler_options, cpp_build, probes

CPP_EXT = Path(__file__).parents[2] / "cpp_ext"
COMPILED = ["cpp", "cuda"]


def declaration_of(op):
    """The parameters of an op's function in a backend: as declared, less `backend`."""
    return {n: p for n, p in op.signature.parameters.items() if n != "backend"}


def facts(parameters):
    return [(name, p.kind, p.default) for name, p in parameters.items()]


@pytest.mark.parametrize("name", config.known_names())
def test_every_backend_has_the_declared_parameters(name):
    """Names, order, kinds and defaults: a plain call passes arrays alone, so that a backend's own count."""
    module = open_backend(name).module
    if not module and name != "python":
        assert name not in REQUIRED, open_backend(name).why_not
        pytest.skip(f"{name}: {open_backend(name).why_not}")
    kernels = open_backend(name).kernels
    assert kernels.keys() >= OPS.keys()  # a test may have had an op of its own when the backend was opened
    for op in OPS:
        if (function := kernels[op]) != OPS[op].define:
            found = inspect.signature(function).parameters
            assert facts(found) == facts(declaration_of(OPS[op])), f"{name}: {op}"


@pytest.mark.parametrize("op", OPS)
def test_the_public_functions_have_the_declared_parameters(op):
    function = getattr(tensor_ops, op)
    assert facts(inspect.signature(function).parameters) == facts(OPS[op].signature.parameters)


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_functions_say_their_declaration(name):
    """What the compiler read, as help() shows it."""
    module = open_backend(name).module
    if not module:
        assert name not in REQUIRED, open_backend(name).why_not
        pytest.skip(f"{name}: {open_backend(name).why_not}")
    found = {op: getattr(module, op).__doc__ for op in OPS if hasattr(module, op)}
    assert found and found == {op: OPS[op].text for op in found}


def test_the_generated_function_in_the_documentation_is_the_one_that_runs():
    source = inspect.getsource(tensor_ops.gelu)
    assert textwrap.indent(source, " " * 4) in signature_codegen.__doc__


def test_the_table_of_compiled_ops_is_in_the_words_of_the_declarations():
    """The C++ registry reads no other."""
    table = (CPP_EXT / "ops" / "table.h").read_text()
    calls = re.findall(r"(\w+) =\s*declare\(((?:\s*\"[^\"]*\")+)\);", table)
    assert len(calls) == table.count("declare(") > 0
    for constant, literals in calls:
        text = "".join(re.findall(r'"([^"]*)"', literals))
        name, _, _ = text.partition("(")
        assert text == OPS[name].text
        assert constant == "k" + name.title().replace("_", "")


WRONG = {
    "f(x: '... d' -> '... d'": "a parenthesis is missing",
    "f(x: '... d : texture') -> '... d'": "no such kind of array",
    "f(x: '... d', eps: complex = 1) -> '... d'": "no such type",
    "f(x: '... d', eps: float = tiny) -> '... d'": "no such default",
    "f(x: '... d', weight: 'd' = None, y: '... d') -> '... d'": "given after what need not be",
    "f(x: '... d') -> '... e'": "no array has the result's axis",
    "f(x: '... d') -> '... d' where q at most d": "no array has the requirement's axis",
    "f(n: '... : index of v') -> '...'": "no array of the op's own, nor a stored one",
}


@pytest.fixture
def cxx():
    if not probes.compiler(probes.cxx_command()):
        assert "cpp" not in REQUIRED, "AIRLLM_TEST_REQUIRE names cpp, and there is no compiler"
        pytest.skip("no C++ compiler")
    return [*probes.cxx_command(), "-std=c++17"]


def syntax(cxx, tmp_path, text):
    """The compiler's answer to a declaration of an op whose sizes and help() are used."""
    source = tmp_path / "declares.cpp"
    source.write_text(
        '#include "ops/sizes.h"\nusing namespace airllm::declared;\n'
        f'inline constexpr Declaration kOp = declare("{text}");\n'
        "static_assert(documentation(kOp).size && kOp.first() < kOp.count);\nSizes<kOp> sizes;\n"
    )
    command = [*cxx, "-fsyntax-only", "-Wall", "-Werror", f"-I{CPP_EXT}", str(source)]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_declaration_that_says_nothing_known_does_not_compile(cxx, tmp_path):
    right = syntax(cxx, tmp_path, "f(x: '... d', eps: float = 1e-06) -> '... d'")
    assert right.returncode == 0, right.stderr
    for text, why in WRONG.items():
        answer = syntax(cxx, tmp_path, text)
        assert answer.returncode and "constant expression" in answer.stderr, f"{why}: {text}\n{answer.stderr}"


# ---- C++ programs

DEFAULTS = {"false": False, "Gelu::TANH": "tanh", "{}": None}
SIZES = {"int64_t", "AttentionShape"}  # what stands for shapes there


def methods_of_programs():
    """The ops of backends.h: their parameters, without sizes, by name with the defaults' texts."""
    header = (CPP_EXT / "include" / "airllm" / "backend" / "backends.h").read_text()
    found = {}
    for name, text in re.findall(r"virtual void (\w+)\(([^;]*)\) const;", header):
        parameters = re.findall(
            r"(?:const )?([\w:]+)[ *&]+(\w+)(?: = ([^,]+))?(?:, |$)", " ".join(text.split())
        )
        found[name] = [(n, default) for kind, n, default in parameters if kind not in SIZES]
    return found


def test_methods_of_cpp_programs_have_the_declared_names_and_defaults():
    """Results first, then arrays and parameters; those of attention after q, k and v are in its options."""
    found = methods_of_programs()
    assert {"rms_norm", "softmax", "attention", "linear"} <= found.keys() <= OPS.keys()
    for name, parameters in found.items():
        op, n_outs = OPS[name], len(OPS[name].outs)
        names = [{"form": "approximate"}.get(n, n) for n, _ in parameters[n_outs:]]
        expected = [n for n in declaration_of(op) if n != "out"]
        if name == "attention":
            assert names == ["q", "k", "v", "options"]
            continue
        assert sorted(names) == sorted(expected), name
        assert [n for n in names if n in op.arrays] == list(op.arrays), name
        for (_, text), n in zip(parameters[n_outs:], names, strict=True):
            if text:
                default = DEFAULTS[text] if text in DEFAULTS else float(text.rstrip("f"))
                assert default == declaration_of(op)[n].default, f"{name}: {n}"
            elif n in op.defaults:
                assert declaration_of(op)[n].default is inspect.Parameter.empty, f"{name}: {n} has no default"


def test_options_of_attention_in_cpp_programs_are_the_declared_ones():
    header = (CPP_EXT / "include" / "airllm" / "backend" / "backends.h").read_text()
    (fields,) = re.findall(r"struct AttentionOptions \{(.*?)\};", header, re.S)
    found = dict(re.findall(r"^  [\w:<>]+ (\w+)(?: = (\w+))?;", fields, re.M))
    assert found == {"causal": "false", "scale": "", "softcap": "", "window": "", "mask": "", "sinks": ""}
    op = OPS["attention"]
    assert set(found) == set(declaration_of(op)) - {"q", "k", "v", "out"}
    assert op.defaults["causal"] is False and {op.defaults[n] for n in ("scale", "softcap", "window")} == {
        None
    }


def test_kernels_of_mlx_have_the_declared_parameters():
    """They are called with all of them: a default of their own must be the declared one."""
    if not open_backend("mlx").module:
        assert "mlx" not in REQUIRED, open_backend("mlx").why_not
        pytest.skip(f"mlx: {open_backend('mlx').why_not}")
    from tensor_ops_mlx import operations

    for name in [n for n in OPS if hasattr(operations, n)]:
        expected = {n: p for n, p in declaration_of(OPS[name]).items() if n != "out"}
        found = inspect.signature(getattr(operations, name)).parameters
        assert list(found) == list(expected), name
        for n, p in found.items():
            assert p.default in (p.empty, expected[n].default), f"{name}: {n}"


# ---- the guide

PROGRAM = """
#include <airllm/backend/backends.h>
#include <iostream>
int main() {
  const float x[] = {-1, 2, 3, -4}, weight[] = {5, 6};
  float out[4];
  airllm::backend::get_default_backend()->scaled_relu(out, x, weight, 2, 2);
  for (const float value : out) std::cout << value << ' ';
}
"""


def hunks():
    """What "Adding an op" shows, by file: new lines, and those there that they stand beside, as of a diff."""
    (text,) = [text for _, text in blocks("BACKEND_GUIDE.md", "python") if "def scaled_relu" in text]
    definition = text[text.index("@op") : text.index("print(")].splitlines(keepends=True)
    yield "airllm/tensor_ops.py", [*(f"+{line}" for line in definition), " __all__ = [\n"]
    for _, text in blocks("BACKEND_GUIDE.md", "diff"):
        for part in re.split(r"^--- ", text, flags=re.M)[1:]:
            name, *of_file = re.split(r"^@@\n", part, flags=re.M)
            yield from ((name.strip(), hunk.splitlines(keepends=True)) for hunk in of_file)


def add_the_guides_op(checkout):
    for name, lines in hunks():
        there, shown = (
            "".join(line[1:] for line in lines if line[0] == " "),
            "".join(line[1:] for line in lines),
        )
        if not there:
            assert not (checkout / name).exists(), f"{name} is there, and the guide makes it"
            (checkout / name).write_text(shown)
            continue
        text = (checkout / name).read_text()
        assert text.count(there) == 1, f"{name} has {text.count(there)} of\n{there}"
        (checkout / name).write_text(text.replace(there, shown))


def build_quickly(cxx, checkout, program):
    """The module, and PROGRAM: one instruction set, unoptimized."""
    source, cpp_ext = program.with_suffix(".cpp"), checkout / "cpp_ext"
    source.write_text(PROGRAM)
    quick = [*cxx, *compiler_options.GNU.compile, "-O0", "-DAIRLLM_PLAIN_VECTORS"]
    module = [*cpp_build.SHARED, *cpp_build.includes(), cpp_ext / "tensor_ops_cpp.cpp"]
    of_program = [f"-I{cpp_ext / 'include'}", cpp_ext / "program" / "backends.cpp", source]
    made = {cpp_ext / f"tensor_ops_cpp{probes.EXT_SUFFIX}": module, program: of_program}
    calls = [[*quick, *options, "-o", target] for target, options in made.items()]
    with ThreadPoolExecutor(len(calls)) as pool:
        for answer in pool.map(lambda call: checkouts.run([*map(str, call)], checkout), calls):
            assert answer.returncode == 0, checkouts.output_of(answer)


def test_the_guide_adds_an_op(cxx, tmp_path):
    """All that it shows gives Python and C++ programs the op, and the tests find it by themselves."""
    checkout, program = checkouts.copy(tmp_path / "checkout"), tmp_path / "program"
    add_the_guides_op(checkout)
    build_quickly(cxx, checkout, program)
    answer = checkouts.run([str(program)], tmp_path)
    assert answer.stdout == "0 12 15 0 ", checkouts.output_of(answer)
    tests = ["tests/ops/test_ops.py", "tests/ops/test_declarations.py"]
    chosen = ["-k", "cpp and (scaled_relu or compiled) or table_of or cpp_programs"]
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *chosen, *tests]
    answer = checkouts.run(command, checkout, PYTHONPATH=f"{checkout}:{checkout / 'cpp_ext'}")
    assert answer.returncode == 0, checkouts.output_of(answer)
    passed = [line for line in answer.stdout.splitlines() if "PASSED" in line]
    ran = "test_agrees_with_definition[cpp:scalar-scaled_relu-"
    assert any(ran in line for line in passed), checkouts.output_of(answer)


GUIDED = ("opencl", "webgpu", "mlx")  # backends without a build


@pytest.fixture(scope="module")
def with_the_guides_op(tmp_path_factory):
    checkout = checkouts.copy(tmp_path_factory.mktemp("guide") / "checkout")
    add_the_guides_op(checkout)
    return checkout


def agrees_with_the_definition(checkout, backend, before="", **environment):
    """In float64, on every device of the backend; `reached` there sees that its own kernels ran."""
    chosen = ["-k", f"test_agrees_with_definition and {backend} and scaled_relu"]
    options = ["-v", "-p", "no:cacheprovider", *chosen]
    command = [sys.executable, "-m", "pytest", *options, "tests/ops/test_ops.py"]
    path = f"{before}{checkout}:{checkout / 'cpp_ext'}"
    answer = checkouts.run(command, checkout, **environment, PYTHONPATH=path)
    assert answer.returncode == 0, checkouts.output_of(answer)
    passed = [line for line in answer.stdout.splitlines() if "PASSED" in line]
    ran = rf"test_agrees_with_definition\[{backend}.*-scaled_relu-"
    assert any(re.search(ran, line) for line in passed), checkouts.output_of(answer)


@pytest.mark.parametrize("name", GUIDED)
def test_the_guide_adds_an_op_to(name, with_the_guides_op):
    if not open_backend(name).module:
        assert name not in REQUIRED, open_backend(name).why_not
        pytest.skip(f"{name}: {open_backend(name).why_not}")
    agrees_with_the_definition(with_the_guides_op, name)


def test_the_guide_adds_an_op_to_cuda(with_the_guides_op, tmp_path):
    """On the stand-in for CUDA's runtime, in host memory."""
    if reason := build.why_not():
        assert "nvcc" not in REQUIRED, reason
        pytest.skip(reason)
    made = checkouts.run([sys.executable, "tests/cuda_on_host/build.py", str(tmp_path)], with_the_guides_op)
    assert made.returncode == 0, checkouts.output_of(made)
    settings = build.environment(tmp_path)
    names = ("LD_PRELOAD", "ASAN_OPTIONS", "AIRLLM_CUDA_MATMUL", "AIRLLM_TEST_REQUIRE")
    found = {name: settings[name] for name in names if name in settings}
    agrees_with_the_definition(with_the_guides_op, "cuda", before=f"{tmp_path}:", **found)
