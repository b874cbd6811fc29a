"""Each kind of C++ compiler gets its own options: GCC and Clang, Apple's, and clang-cl on Windows."""

import shutil
import subprocess
import sysconfig

import checkouts
import pytest
from environment import REQUIRED

from cpp_ext.commands import CommandError, compiler_options, cpp_build, stamps

WINDOWS_CL = "C:\\Program Files\\LLVM\\bin\\clang-cl.exe"
# What compiling and linking have, and what they must not have.
CALLS = {
    ("g++", "linux"): (["-O3", "-fPIC", "-pthread", "-c"], ["-shared", "-pthread"], ["/LD", "-bundle"]),
    ("clang++", "darwin"): (["-O3", "-fPIC", "-c"], ["-bundle", "dynamic_lookup"], ["-shared", "/O2"]),
    ("clang-cl", "win32"): (["/O2", "/std:c++17", "/EHsc", "/c"], ["/LD", "/MD"], ["-fPIC", "-c", "-shared"]),
    (WINDOWS_CL, "win32"): (["/O2", "/bigobj"], ["/LD"], ["-fPIC", "-Wall"]),
}


@pytest.mark.parametrize(("compiler", "platform"), CALLS)
def test_options_are_those_of_the_compiler_and_the_system(compiler, platform):
    compile, link, neither = CALLS[compiler, platform]
    spelling = compiler_options.spelling_of([compiler], platform)
    assert {*compile} <= {*spelling.compile, spelling.alone} and {*link} <= {*spelling.link}
    assert not {*neither} & {*spelling.compile, spelling.alone, *spelling.link}
    every = [*spelling.compile, *spelling.link]
    for wrong in ("native", "-mavx", "/arch", "fast-math", "/fp:fast"):  # a wheel runs on every CPU
        assert not [option for option in every if wrong in option]


# Answers its version; writes to its output how it was called.
CLANG_CL = """case "$*" in *--version*) echo "clang version 19"; exit;; esac
for each; do case "$each" in /Fo*|/Fe*) target="${each#/F?}";; esac; done
echo "$*" >"$target"
case "$*" in */link*) echo >"${target%.*}.lib"; echo >"${target%.*}.exp";; esac
"""


@pytest.fixture
def clang_cl(tmp_path, monkeypatch):
    """A clang-cl that answers with its arguments, and a build of this test's own."""
    for name in ("CPPFLAGS", "CFLAGS", "CXXFLAGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(stamps, "FOLDER", tmp_path / "stamps")
    monkeypatch.setenv("LDFLAGS", "/DEBUG:NONE")
    monkeypatch.setenv("CXX", str(checkouts.script(tmp_path / "clang-cl", CLANG_CL)))
    return tmp_path / "build"


def test_clang_cl_is_called_as_it_wants_to_be(clang_cl, capsys):
    module = cpp_build.build(clang_cl)
    call = module.read_text().split()
    assert call.index("/LD") < call.index("/link") < call.index("/DEBUG:NONE")
    assert [part for part in call if part.startswith("/Fe")] == [f"/Fe{clang_cl}/.{module.name}.{pid(call)}"]
    assert f"/LIBPATH:{sysconfig.get_config_var('installed_base')}/libs" in call
    assert {path.name for path in clang_cl.iterdir()} == {module.name}  # no import library beside it
    compiled = [line.split() for line in capsys.readouterr().out.splitlines() if " /c " in line]
    assert len(compiled) == len(cpp_build.SOURCES)
    include = f"/I{sysconfig.get_path('include')}"
    assert all(include in call and "-fopenmp" not in call and "-o" not in call for call in compiled)
    cpp_build.build(clang_cl)
    assert "is up to date" in capsys.readouterr().out


def pid(call):
    return next(part for part in call if part.startswith("/Fe")).rpartition(".")[2]


def test_msvcs_own_compiler_is_refused_with_a_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", str(checkouts.script(tmp_path / "cl.exe", "exit 0")))
    with pytest.raises(CommandError, match="no vector types.*: install Clang for Windows .*CXX=clang-cl"):
        cpp_build.calls()


def test_clang_knows_each_option_that_clang_cl_gets(tmp_path):
    """By clang itself in that mode, for Windows; its headers are Microsoft's, so the program has none."""
    clang = shutil.which("clang++") or shutil.which("clang")
    if not clang:
        assert "clang" not in REQUIRED
        pytest.skip("clang is not installed")
    (tmp_path / "program.cpp").write_text(
        "typedef float V __attribute__((vector_size(32)));\n"
        '#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)\n'
        'static_assert(__cplusplus == 201703L && sizeof(V) == 32 && _MSC_VER, "");\n'
        "V twice(V x) { return x + x; }\n"
        "#pragma clang attribute pop\n"
    )
    command = [clang, "--driver-mode=cl", "--target=x86_64-pc-windows-msvc"]
    assert compiler_options.spelling_of(command) is compiler_options.CL
    call = [*command, *compiler_options.CL.compile, "/Zc:__cplusplus", "/WX", "-Werror=unknown-argument"]
    call = compiler_options.with_output([*call, "/c", "program.cpp"], "program.obj")
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert (tmp_path / "program.obj").read_bytes()[:2] == b"\x64\x86"  # COFF for x86-64
    done = subprocess.run([*call, "/nowhere-option"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
