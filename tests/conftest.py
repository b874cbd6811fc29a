"""Which backends the suite runs on. What AIRLLM_TEST_REQUIRE (a comma list) names must run here, or the
suite refuses to start: a backend that was skipped is never a green one.
"""

import atexit
import gc
import os
import shutil
import sys
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import checkouts
import process_choice
import pytest
from case_choice import spread
from environment import ALL, REQUIRED, TOOLS

# Compiled OpenCL programs of earlier runs must not hide what this run's kernels do; its processes share them.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _programs = tempfile.mkdtemp(prefix="airllm-programs-")
    atexit.register(shutil.rmtree, _programs, ignore_errors=True)
    os.environ.update(POCL_CACHE_DIR=_programs, PYOPENCL_NO_CACHE="1")
# pip would write there what tests expect it to print.
os.environ.pop("PIP_LOG", None)
# What was measured on this machine must not choose the kernels under test.
os.environ["AIRLLM_TUNING"] = "off"

from targets import Target, targets

from airllm import tensor_ops  # noqa: F401  ops must be declared before a backend is tried
from airllm.backends import registry
from airllm.backends.declaration import Declaration, all_declarations
from airllm.files import smollm2
from airllm.ops.op import OPS

pytest.register_assert_rewrite("accuracy")

SKIPPED = pytest.StashKey[bool]()
MOST = 6  # cases of a test on a target


def pytest_configure(config: pytest.Config) -> None:
    known = registry.config.known_names()
    if unknown := set(REQUIRED) - TOOLS - set(known):
        pytest.exit(
            f"AIRLLM_TEST_REQUIRE has {sorted(unknown)}, expected of {sorted({*known, *TOOLS})}", returncode=3
        )
    backends = [name for name in REQUIRED if name in known]
    missing = {name: why for name in backends if (why := registry.open_backend(name).why_not)}
    if missing:
        pytest.exit(f"AIRLLM_TEST_REQUIRE names backends that cannot run here: {missing}", returncode=3)


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Of a test's cases on one target at most MOST run: those in which the most pairs of values meet, always
    the same ones. A table of dtypes by shapes by lengths has hundreds, and to make items of them all takes
    longer than to run these. A case that is named runs, and with AIRLLM_TEST_ALL=1 all do.
    """
    named = any("[" in argument for argument in metafunc.config.args)
    test = metafunc.definition
    whole = test.get_closest_marker("whole_table") is not None
    if named or whole or ALL or "target" not in metafunc.fixturenames:
        return
    groups: dict[tuple[str, str], list] = {}
    for case in metafunc._calls:
        groups.setdefault((str(case.params["target"]), str(case.params.get("op"))), []).append(case)
    kept: set[int] = set()
    for (target, _), group in groups.items():
        group.sort(key=lambda case: zlib.crc32(f"{test.nodeid}[{case.id}]".encode()))
        kept |= set(map(id, spread([case.params for case in group], group, _most(test.name, target))))
    left = [case for case in metafunc._calls if id(case) in kept]
    metafunc._calls[:] = left or metafunc._calls[:1]  # none at all would be a test without its arguments


def _most(test: str, target: str) -> int:
    """Fewer where a GPU's kernels run on a processor, for which large arrays are the work of seconds."""
    if not target.startswith("webgpu:"):
        return MOST
    return 0 if "large" in test or "long" in test else 2


def pytest_collection_finish() -> None:
    """Take what the tests are made of out of the garbage collection: to go through it took 0.3 s each time,
    and hundreds of tests collect what those before them left.
    """
    gc.collect()
    gc.freeze()


def pytest_report_header() -> list[str]:
    lines = [f"airllm: kernels under test: {', '.join(map(str, targets())) or 'none'}"]
    for name in registry.config.known_names():
        opened = registry.open_backend(name)
        broken = {} if opened.why_not else getattr(opened.module, "unusable", dict)()
        whys = [opened.why_not] if opened.why_not else [f"{label}: {why}" for label, why in broken.items()]
        lines += [f"airllm: NOT tested: {name}: {why}" for why in whys]
    return lines


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """A case that is beyond what a device takes is skipped, with what its backend says of it."""
    try:
        return (yield)
    except NotImplementedError as error:
        if "a limit of this device" in str(error):
            pytest.skip(str(error))
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    if call.when == "call":
        item.stash[SKIPPED] = report.skipped
    return report


@pytest.fixture(autouse=True)
def process_choice_kept():
    """A test that leaves another backend to the tests after it fails. Torn down after all other fixtures."""
    with process_choice.kept():
        yield


@pytest.fixture
def reached(target: Target, request: pytest.FixtureRequest):
    """The kernels of a target, selected; fails a test that never ran one of them."""
    module = target.module
    if target.variant:
        module.select(target.variant)
    before = module.calls()
    yield module
    ran = module.calls() - before
    if target.variant:
        module.select(None)
    assert ran > 0 or request.node.stash[SKIPPED], f"this test never reached a kernel of {target}"


@pytest.fixture
def as_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are multiplied as they are stored, as within a budget: blocks of 32 then round differently."""
    for target in targets():
        if hasattr(target.module, "interleaved_formats"):
            monkeypatch.setattr(target.module, "interleaved_formats", ())


@pytest.fixture
def variant(request: pytest.FixtureRequest):
    """A device of OpenCL and a form of its kernels, selected."""
    import tensor_ops_opencl

    tensor_ops_opencl.select(request.param)
    yield request.param
    tensor_ops_opencl.select(None)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the checkout in which nothing is built."""
    return checkouts.copy(tmp_path / "checkout")


@pytest.fixture(scope="session")
def real_file() -> Path:
    """SmolLM2-135M-Instruct as a GGUF file."""
    try:
        return smollm2.fetch(timeout=240)
    except smollm2.Unavailable as error:
        if "real-data" in REQUIRED:
            raise
        pytest.skip(f"the real model cannot be had: {error}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that says random bytes."""
    from tests.support.models import speaking_model

    return speaking_model.write(tmp_path_factory.mktemp("model"))


@pytest.fixture
def engine(folder: Path):
    """It, opened."""
    from airllm.layer_engine import LayerWiseInferenceEngine

    with LayerWiseInferenceEngine(folder) as found:
        yield found


@pytest.fixture
def fake(monkeypatch):
    """A backend module made here: answers silu right, and counts the calls."""

    def make(name, **attributes):
        module = ModuleType(f"tensor_ops_{name}")
        module.count = 0

        def silu(x, *, out=None):
            module.count += 1
            return OPS["silu"].define(x, out=out)

        module.silu, module.device = silu, lambda: "a fake device"
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        own = replace(all_declarations().get(name, Declaration()), module=module.__name__)
        monkeypatch.setitem(all_declarations(), name, own)
        monkeypatch.setitem(registry._opened, name, registry._try_open(name))
        return module

    return make
