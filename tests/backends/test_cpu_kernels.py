"""The CPU kernels under sanitizers, each instruction set on its own CPU, and how one is chosen."""

import re
import shutil
import signal
import subprocess
from pathlib import Path

import old_cpu
import pytest
from environment import needs
from interpreters import python
from kernel_programs import CPP, SETS, compile_program, compiler, passes

from airllm.backends import open_backend


def test_no_bad_access_and_no_undefined_behaviour(tmp_path):
    # unoptimized, or the checks take the compiler twice as long, and find no more; what is undefined stops
    # the program instead of being put in words, a fifth of that time: the address sanitizer names its line
    checks = ["-fsanitize=address,undefined", "-fsanitize-undefined-trap-on-error"]
    # Half of the compiler's time less: a null pointer and one that wraps around are found where they are
    # used, by the address sanitizer; what is kept for uses after a return is off when the program runs.
    checks += ["-fno-sanitize=null,pointer-overflow", "--param=asan-use-after-return=0"]
    # each access is checked by a call, whose code is less to compile than its own check
    checks += ["--param=asan-instrumentation-with-call-threshold=0"]
    program = compile_program(tmp_path, compiler(), "-O0", "-g1", *checks, *SETS, "-fopenmp")
    passes(program, ASAN_OPTIONS="handle_sigill=1", OMP_NUM_THREADS="2")


def test_threads_share_work_without_a_race(tmp_path):
    source, program = CPP / "test_workers.cpp", tmp_path / "test_workers"
    flags = ["-std=c++17", "-Wall", "-O1", "-g1", "-fopenmp", "-fsanitize=thread"]
    subprocess.run([compiler(), *flags, str(source), "-o", str(program)], check=True, timeout=120)
    done = subprocess.run([program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_wide_instructions_are_in_the_kernels_of_their_instruction_set_alone(binary):
    """A header's function that was compiled for AVX-512 would be an illegal instruction elsewhere."""
    needs("objdump", shutil.which("objdump"), "objdump (binutils) is not installed")
    text = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", "-C", binary], capture_output=True, text=True
    ).stdout
    wide, function = {"tmm": set(), "zmm": set(), "ymm": set()}, ""
    for line in text.splitlines():
        if line.endswith(">:"):
            function = line.split("<", 1)[1]
        for register, functions in wide.items():
            if f"%{register}" in line:
                functions.add(function)
    if "x86-64" not in text:
        pytest.skip("not an x86-64 binary")
    assert all("cpu::avx512_amx" in name for name in wide["tmm"]), wide["tmm"]
    assert wide["zmm"] and all("cpu::avx512" in name for name in wide["zmm"]), wide["zmm"]
    assert all("cpu::avx" in name for name in wide["ymm"]), wide["ymm"]


def test_vectors_are_multiplied_and_added_at_once(binary):
    needs("objdump", shutil.which("objdump"), "objdump (binutils) is not installed")
    text = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", binary], capture_output=True, text=True
    ).stdout
    if "x86-64" not in text:
        pytest.skip("not an x86-64 binary")
    for instruction in (
        r"vfn?madd\w+ps\s.*zmm",
        r"vfn?madd\w+ps\s.*ymm",
        r"vcvtph2ps\s.*zmm",
        r"vmovntps\s+%zmm",
        r"movntps\s+%xmm",
    ):
        assert re.search(instruction, text), f"no {instruction}"


def test_the_environment_chooses_an_instruction_set_that_exists(binary):
    code = "import tensor_ops_cpp as c; print(c.simd_level, c.device())"
    for isa in open_backend("cpp").module.variants():
        for name in (isa, isa.upper()):
            assert python(code, AIRLLM_CPU_ISA=name)[0].startswith(f"{isa} CPU ({isa}, ")
    assert python(code, AIRLLM_CPU_ISA="")[0] == python(code)[0] != ""
    errors = python(code, AIRLLM_CPU_ISA="mmx")[1]
    assert "ImportError: AIRLLM_CPU_ISA: this CPU has no kernels for 'mmx'; it has: " in errors
    assert open_backend("cpp").module.variants()[-1] in errors


def test_a_cpu_without_avx_runs_the_same_binary(binary, monkeypatch):
    """An emulated CPU of 2008: the module loads, takes SSE2, and is right; whatever this process's
    environment makes of NumPy's libraries.
    """
    needs("qemu-x86_64", old_cpu.EMULATOR, "qemu-x86_64-static is not installed")
    code = (
        "import numpy as np, tensor_ops_cpp as c; x = np.linspace(-9, 9, 1001, dtype=np.float32);"
        "print(c.simd_level, c.has_avx2, abs(c.silu(x) - x / (1 + np.exp(-x))).max() < 1e-6)"
    )
    monkeypatch.setenv("OPENBLAS_CORETYPE", "SkylakeX")
    done = old_cpu.run(code, Path(binary).parent)
    assert done.stdout.split() == ["sse2", "False", "True"], done.stdout + done.stderr


# vaddps of 8 lanes and a return, called as a function
ILLEGAL = """
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes.fromhex("c5fc58c0c3"))
ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
"""


def test_an_instruction_that_the_old_cpu_lacks_is_named():
    """Else a failure elsewhere is but 'Illegal instruction', of one of four libraries."""
    needs("qemu-x86_64", old_cpu.EMULATOR, "qemu-x86_64-static is not installed")
    done = old_cpu.run(ILLEGAL)
    assert old_cpu.signal_of(done) == signal.SIGILL
    assert 'File "<string>", line 5 in <module>' in done.stderr
    said = done.stderr.partition("Again, it ends at:\n")[2]
    assert re.search(r"mmap\(.*\nIN: *\n0x\w+: +c5 fc 58 c0 +vaddps .*%ymm0", said, re.S), done.stderr


WRONG_SETTINGS = {
    "AIRLLM_NUM_THREADS": ("8x", "0", "-3", "100000", "99999999999999999999"),
    "AIRLLM_CPU_ISA": ("foo",),
    "AIRLLM_CPU_PREFETCH": ("2", "yes"),
}


@pytest.mark.parametrize("variable, value", [(n, v) for n, values in WRONG_SETTINGS.items() for v in values])
def test_a_setting_that_cannot_be_fails_the_import(variable, value, binary):
    """That of airllm too, whose automatic choice would else compute with NumPy, a hundred times slower."""
    says = {
        "AIRLLM_NUM_THREADS": f"has value '{value}', expected a whole number from 1 to 4096\n",
        "AIRLLM_CPU_ISA": f": this CPU has no kernels for '{value}'; it has: ",
        "AIRLLM_CPU_PREFETCH": f"has value '{value}', expected 0 or 1\n",
    }[variable]
    says = f"{variable}{'' if says.startswith(':') else ' '}{says}"
    code = "import airllm.tensor_ops; print('imported')"
    printed, errors = python(code, AIRLLM_BACKEND="cpp,python", **{variable: value})
    assert printed == "" and f"\nairllm.backends.config.ConfigError: {says}" in errors
    assert f"\nImportError: {says}" in errors  # of the module, of which airllm's error comes
