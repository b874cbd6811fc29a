"""The ROCm backend without a GPU: built by hipcc for GPUs of both kinds, imported, and asked what runs.

Whether its kernels compute correctly is not tested: that needs a GPU. Their text is that of OpenCL and CUDA.
"""

import re
import subprocess
import sys

import checkouts
import pytest
from environment import REQUIRED

from cpp_ext.commands import CommandError, probes, rocm_build, rocm_probes

ARCHS = ("gfx90a", "gfx1030")  # groups of 64 work-items run in step, and of 32


@pytest.fixture(scope="module")
def hipcc():
    found = rocm_probes.hipcc()
    missing = [str(each) for each in (found, *probes.cpp_prerequisites()) if not each]
    if missing and "hipcc" in REQUIRED:
        pytest.fail(f"AIRLLM_TEST_REQUIRE names hipcc: {missing}")
    if missing:
        pytest.skip("; ".join(missing))
    return found.path


def test_compiles_for_both_kinds_of_gpus_and_says_why_nothing_runs(hipcc, tmp_path, monkeypatch):
    """Without optimization, which takes a quarter of the time."""
    checkout = checkouts.copy(tmp_path / "checkout")
    monkeypatch.setenv("HIPFLAGS", "-O0")
    monkeypatch.setenv("CXXFLAGS", "-O0")
    command = [sys.executable, "setup.py", "build_hip", f"--arch={','.join(ARCHS)}"]
    first, again = (checkouts.run(command, checkout) for _ in range(2))
    assert first.returncode == again.returncode == 0, checkouts.output_of(first)
    module = checkout / "cpp_ext" / f"tensor_ops_rocm{probes.EXT_SUFFIX}"
    assert f"built {module}" in first.stdout and "is up to date" in again.stdout
    targets = set(re.findall(rb"amdgcn-amd-amdhsa--(gfx\w+)", module.read_bytes()))
    assert targets == {arch.encode() for arch in ARCHS}
    if rocm_probes.driver():
        return
    assert "it cannot run here: " in first.stdout
    code = """
import numpy as np
import tensor_ops_rocm as rocm
info = rocm.get_cuda_info()
assert info["archs"] == "gfx90a, gfx1030" and not info["available"] and rocm.calls() == 0, info
try:
    rocm.silu(np.ones(2, np.float32))
except RuntimeError as error:
    assert "AMD driver" in str(error) and info["reason"] in str(error), error
else:
    raise SystemExit("no error")
from airllm.backends import registry
assert "AMD driver" in registry.open_backend("rocm").why_not
"""
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=checkout,
        env={"PATH": "", "PYTHONPATH": f"{checkout}:{checkout / 'cpp_ext'}"},
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr


def test_gpus_that_the_compiler_does_not_know_are_named(hipcc, monkeypatch):
    monkeypatch.delenv("AIRLLM_HIP_ARCHS", raising=False)
    monkeypatch.setattr(rocm_probes, "ARCHS", ("gfx900", "gfx999"))
    assert rocm_build.choose_architectures(None, hipcc) == ["gfx900"]
    assert rocm_build.choose_architectures(["gfx90a", "gfx90a"], hipcc) == ["gfx90a"]
    with pytest.raises(CommandError, match="hipcc does not compile for gfx999: .*; it compiles for: gfx900$"):
        rocm_build.choose_architectures(["gfx90a", "gfx999"], hipcc)


def test_the_compiler_is_looked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("AIRLLM_HIPCC", str(tmp_path / "none"))
    assert f"AIRLLM_HIPCC={tmp_path / 'none'}: there is no program" in rocm_probes.hipcc().why_not
    with pytest.raises(
        CommandError, match="(?s)tensor_ops_rocm cannot be built here.*correct or unset AIRLLM_HIPCC"
    ):
        rocm_build.build(tmp_path)
    program = tmp_path / "hipcc"
    program.write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("AIRLLM_HIPCC", str(program))
    assert "--version fails: broken" in rocm_probes.hipcc().why_not


def test_the_driver_is_looked_for(monkeypatch, tmp_path):
    monkeypatch.setattr(rocm_probes, "DRIVER", tmp_path / "kfd")
    assert "no AMD driver" in rocm_probes.driver().why_not
    (tmp_path / "kfd").touch()
    assert rocm_probes.driver()
