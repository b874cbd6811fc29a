"""Models larger than the memory: what stays, what is read for each token, what `airllm info` says before."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from airllm.cli.commands import main
from airllm.files import pages
from airllm.files.open_weights import open_weights
from airllm.files.pages import SUPPORTED, Piece, blocks_read, populate, release, release_to_disk
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory import available, budget
from airllm.memory.budget import MemoryBudgetError
from airllm.memory.stream import DiskStream
from benchmarks.synthetic_models import Shape, write_model

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="a budget of memory needs Linux")

# 10 layers of 38 MB: large enough to lie apart when they are read from disk.
SHAPE = Shape(1024, 10, 10240, 8, 8, 2048, context=16384)
MEMORY = 300 << 20
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage").exists()
PROMPT = list(range(1, 30))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = write_model(tmp_path_factory.mktemp("large") / "model.gguf", SHAPE, "q8_0")
    drop_from_page_cache(path)
    yield path
    path.unlink()


def drop_from_page_cache(path):
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resident_file_bytes():
    """Bytes of mapped files in this process's memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssFile"))


def small_machine(monkeypatch, nbytes=MEMORY):
    """Let so many bytes be available to a model."""
    monkeypatch.setattr(available, "host_memory", lambda: (1 << 40, available.free_for(nbytes)))
    assert abs(available.available_memory() - nbytes) < 100


# ------------------------------------------------------------------------------------------------ the engine


@pytest.fixture(params=("own memory", "page cache"))
def passes_through(request, monkeypatch):
    """What weights pass through: a kernel that cannot move pages has only the page cache for it."""
    if request.param == "page cache":
        monkeypatch.setattr(pages, "can_move", lambda: False)
    elif not pages.can_move():
        pytest.skip("this kernel cannot move memory")
    return request.param


def test_without_a_word_what_fits_stays_and_the_text_is_the_same(
    model, monkeypatch, as_stored, passes_through
):
    with LayerWiseInferenceEngine(model) as engine:
        assert engine.model.residency.whole
        expected = engine.generate(PROMPT, 6), engine.forward(PROMPT)
    small_machine(monkeypatch)
    with LayerWiseInferenceEngine(model) as engine:
        residency = engine.model.residency
        assert residency.limit.from_disk and abs(residency.limit.nbytes - MEMORY) < 100
        assert engine.context == 8192  # as without a limit
        assert engine.generate(PROMPT, 6) == expected[0]
        assert np.abs(engine.forward(PROMPT) - expected[1]).max() <= 1e-5 * np.ptp(expected[1])
        stay = [i for i, group in enumerate(residency.plan.group[: SHAPE.layers]) if group < 0]
        assert 4 <= len(stay) <= 6 and np.diff(stay).max() <= 3  # those that stay lie apart


def flags_of_map(address):
    """The kernel's flags of this process's map at an address."""
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if match := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
            found = int(match[1], 16) <= address < int(match[2], 16)
        elif found and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise LookupError(f"there is not a map at {address:x}")


@pytest.mark.skipif(not HUGE_PAGES, reason="this kernel has no huge pages")
def test_what_stays_takes_huge_pages_unless_what_passes_does(model, monkeypatch, passes_through):
    """Huge pages of the page cache that passed made the kernel evict those that stay."""
    monkeypatch.setattr(pages, "free_huge_pages", lambda: 1 << 40)
    small_machine(monkeypatch)
    with LayerWiseInferenceEngine(model) as engine:
        for memory in (MEMORY, MEMORY // 2):
            small_machine(monkeypatch, memory)
            engine.forward([1])
            residency = engine.model.residency
            for group, pieces in zip(residency.plan.group, residency._units.streamed, strict=True):
                flags = flags_of_map(pieces[0].mapped.address + sum(pieces[0][1:]) // 2)
                if passes_through == "page cache":
                    assert ("nh" in flags, "hg" in flags) == (group < 0, group >= 0)
                elif group < 0:
                    assert "hg" in flags


@pytest.mark.skipif(not HUGE_PAGES, reason="this kernel has no huge pages")
def test_what_stays_takes_no_more_huge_pages_than_are_free(model, monkeypatch):
    """For each that was not, the kernel evicted another: tokens read the whole file, for a minute. What is in
    the page cache already stays as it is.
    """
    if not pages.can_move():
        pytest.skip("this kernel cannot move memory")

    def huge():
        """Whether each layer that stays is read in huge pages, in order."""
        with LayerWiseInferenceEngine(model) as engine:
            engine.forward([1])
            residency = engine.model.residency
            stay = [
                unit
                for unit, group in zip(residency._units.layers, residency.plan.group, strict=False)
                if group < 0
            ]
            return ["hg" in flags_of_map(unit[0].mapped.address + sum(unit[0][1:]) // 2) for unit in stay]

    small_machine(monkeypatch)
    drop_from_page_cache(model)
    monkeypatch.setattr(pages, "free_huge_pages", lambda: 700 << 20)  # 512 MiB are spare, the stream has 80
    found = huge()
    assert found == sorted(found, reverse=True) and 1 <= sum(found) <= 3 < len(found)
    assert all(huge())


def test_what_passes_leaves_no_page_in_the_page_cache(model, monkeypatch):
    """Gigabytes of pages that are allocated and freed for each token cost more than the layers."""
    if not pages.can_move():
        pytest.skip("this kernel cannot move memory")
    drop_from_page_cache(model)
    with open_weights(model) as weights:
        if cached_part(Piece(pages.Mapped(weights.maps()[0]), 0, model.stat().st_size)) > 0.5:
            pytest.skip("the file system is in memory")
    small_machine(monkeypatch)
    with LayerWiseInferenceEngine(model) as engine:
        cache = engine.new_cache()
        for _ in range(3):
            engine.forward([1], cache)
        residency = engine.model.residency
        passes = [piece for pieces in residency.plan.pieces for piece in pieces]
        assert passes and max(map(cached_part, passes)) < 0.5  # the kernel reads ahead beyond what stays
        layers = zip(residency.plan.group, residency._units.layers, strict=False)
        assert min(cached_part(piece) for group, pieces in layers for piece in pieces if group < 0) > 0.99


def cached_part(piece):
    """The part of the piece, without its ends, that the page cache has."""
    size = pages.mmap.PAGESIZE
    start, stop = -(-piece.start // pages.AROUND) * pages.AROUND, piece.stop // pages.AROUND * pages.AROUND
    there = np.zeros((stop - start) // size, np.uint8)
    mincore = pages.ctypes.CDLL(None).mincore
    mincore.argtypes = (pages.ctypes.c_void_p, pages.ctypes.c_size_t, pages.ctypes.c_void_p)
    assert not mincore(piece.mapped.address + start, stop - start, there.ctypes.data)
    return (there & 1).mean()


def test_every_sequence_goes_through_a_layer_before_it_is_released(model, monkeypatch):
    small_machine(monkeypatch)
    entered = []
    enter = DiskStream.enter
    monkeypatch.setattr(DiskStream, "enter", lambda self, group: (entered.append(group), enter(self, group)))
    with LayerWiseInferenceEngine(model) as engine:
        for sequences in (1, 16):
            caches = [engine.new_cache() for _ in range(sequences)]
            for tokens in ([1, 2, 3], [4]):
                entered.clear()
                engine.forward([tokens] * sequences, caches)
                assert entered == list(range(len(engine.model.residency.plan.groups))) != []


MEASURE = """
import json, sys
from airllm import tensor_ops
import numpy as np
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory import available

def number(file, key):
    return next(int(line.split()[1]) for line in open(file) if line.startswith(key))

path, memory = sys.argv[1], int(sys.argv[2])
available.host_memory = lambda: (1 << 40, available.free_for(memory))
tensor_ops.linear(np.ones((2, 64), np.float32), np.ones((64, 64), np.float32))  # threads and their stacks
open("/proc/self/clear_refs", "w").write("5")  # the peak begins here
before, read = number("/proc/self/status", "VmRSS"), []
with LayerWiseInferenceEngine(path) as engine:
    cache = engine.new_cache()
    for token in range(6):
        engine.forward([token], cache)
        for task, _ in engine.model.residency._stream._loading.values():  # else more or less is read ahead
            engine.model.residency._reader.wait(task)
        read.append(number("/proc/self/io", "read_bytes"))
    streamed = sum(piece.stop - piece.start for some in engine.model.residency.plan.pieces for piece in some)
peak = number("/proc/self/status", "VmHWM") - before
print(json.dumps({"peak": peak << 10, "streamed": streamed, "read": read[-1] - read[-5]}))
"""


def test_memory_stays_within_what_is_available_and_only_the_rest_is_read(model):
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(model), str(MEMORY)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["peak"] < MEMORY
    size = model.stat().st_size
    assert 0 < found["streamed"] < size - MEMORY + 4 * 40e6  # two layers pass, one fits in part, activations
    if found["read"]:  # else the files are in memory
        assert 0.9 * found["streamed"] < found["read"] / 4 < 1.1 * found["streamed"] + 4e6


def test_memory_that_is_too_small_even_for_a_layer(model, monkeypatch, capsys):
    small_machine(monkeypatch, 20 << 20)
    with pytest.raises(MemoryBudgetError, match=r"\d+ bytes of memory are available, expected at least \d+"):
        LayerWiseInferenceEngine(model)
    assert main(["info", str(model)]) == 0
    assert "bytes of memory are available, expected at least" in capsys.readouterr().out


def test_layers_give_way_to_caches_without_a_word(model, monkeypatch):
    small_machine(monkeypatch)
    with LayerWiseInferenceEngine(model, context=16384) as engine:
        assert engine.context == 16384
        cache = engine.new_cache()
        engine.forward([1], cache)
        before = engine.model.residency.stays
        cache.extend([1] * 2000)  # counts as having so many tokens
        engine.forward([1], cache)
        assert engine.model.residency.stays < before
        cache.extend([1] * 14000)
        with pytest.raises(MemoryBudgetError, match="of memory are available, .* with caches of"):
            engine.forward([1], cache)


def test_layers_give_way_while_other_programs_use_the_memory(model, monkeypatch, passes_through):
    small_machine(monkeypatch)
    with LayerWiseInferenceEngine(model) as engine:
        residency, cache = engine.model.residency, engine.new_cache()
        expected, before = engine.forward(PROMPT, cache), residency.stays
        stays = []
        for free in (MEMORY - (4 << 20), MEMORY - (90 << 20), 1 << 20, 2 * MEMORY):
            small_machine(monkeypatch, max(free - residency._stream.allocated_bytes, 1 << 20))
            cache.truncate(0)
            np.testing.assert_array_equal(engine.forward(PROMPT, cache), expected)
            stays.append(residency.stays)
        assert stays[0] == stays[3] == before  # a little does not matter; more than at first is not taken
        assert before - 4 <= stays[1] < before and stays[2] == 0  # with one byte, as much as a token needs


def test_experts_that_are_used_often_stay_within_what_is_available(tmp_path, monkeypatch):
    shape = Shape(512, 3, 2048, 8, 8, 1000, context=512, experts=12, experts_used=2)
    path = write_model(tmp_path / "model.gguf", shape, "q8_0")
    options = {"compute": "float32", "cache_dtype": "f32"}  # no rounding that could change an expert
    with LayerWiseInferenceEngine(path, **options) as engine:
        expected = [engine.forward(PROMPT), *map(engine.forward, ([token] for token in PROMPT))]
    small_machine(monkeypatch, memory := 90 << 20)
    before = resident_file_bytes()
    with LayerWiseInferenceEngine(path, **options) as engine:
        residency = engine.model.residency
        found = [engine.forward(PROMPT), *map(engine.forward, ([token] for token in PROMPT))]
        assert resident_file_bytes() - before < memory < 36 * residency.expert_bytes
        assert not residency.plan.groups  # all but experts stays
        held = len(residency.used_experts)
        assert 2 < held <= residency.plan.experts // residency.expert_bytes < 36
    for one, other in zip(found, expected, strict=True):
        assert np.abs(one - other).max() <= 1e-5 * np.ptp(other)


@pytest.mark.parametrize("memory", (47_000_000, 55_000_000, 63_000_000))
def test_experts_that_are_released_take_nothing_of_the_layers_that_pass_beside_them(
    memory, tmp_path, monkeypatch
):
    """To release an expert releases the pages around it: of a slot, they would be weights in use."""
    shape = Shape(1024, 6, 1024, 8, 8, 1000, context=512, experts=8, experts_used=2)
    path = write_model(tmp_path / "model.gguf", shape, "q8_0")
    options = {"compute": "float32", "cache_dtype": "f32"}
    with LayerWiseInferenceEngine(path, **options) as engine:
        expected = [engine.forward([token]) for token in PROMPT]
    monkeypatch.setattr(available, "host_memory", lambda: (1 << 40, available.free_for(memory)))
    with LayerWiseInferenceEngine(path, **options) as engine:
        found = [engine.forward([token]) for token in PROMPT]
        residency = engine.model.residency
        assert residency.plan.groups and not residency._stream.allocated_bytes
    for one, other in zip(found, expected, strict=True):
        assert np.abs(one - other).max() <= 1e-5 * np.ptp(other)


# ------------------------------------------------------------------------------------------------------ info


def test_info_says_what_a_token_will_cost(model, monkeypatch, capsys):
    assert main(["info", str(model), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["larger_than_memory"] is None
    small_machine(monkeypatch)
    assert main(["info", str(model), "--json"]) == 0
    cost = json.loads(capsys.readouterr().out)["larger_than_memory"]
    with LayerWiseInferenceEngine(model) as engine:
        engine.forward(PROMPT[:1])
        plan = engine.model.residency.plan
    assert (cost["parts"], cost["stay"]) == (len(plan.group), plan.group.count(-1))
    assert cost["bytes_read"] == sum(piece.stop - piece.start for some in plan.pieces for piece in some)
    if speed := cost["bytes_per_second"]:
        assert 1e7 < speed < 1e11 and cost["seconds"] == cost["bytes_read"] / speed
    monkeypatch.setattr(available, "host_memory", lambda: (1 << 40, cost["free_needed"]))
    with LayerWiseInferenceEngine(model) as engine:
        assert engine.model.residency.whole
    monkeypatch.setattr(available, "host_memory", lambda: (1 << 40, cost["free_needed"] - 1000))
    with LayerWiseInferenceEngine(model) as engine:
        assert not engine.model.residency.whole


def test_info_in_words(model, monkeypatch, capsys):
    small_machine(monkeypatch)
    monkeypatch.setattr("airllm.memory.token_cost.disk_speed", lambda pieces: 2e9)
    assert main(["info", str(model)]) == 0
    text = capsys.readouterr().out
    assert "MB from disk, 0." in text and "s at the 2.0 GB/s that were measured" in text
    assert "314.6 MB are available here: " in text and " free, nothing is read" in text
    monkeypatch.setattr("airllm.memory.token_cost.disk_speed", lambda pieces: None)
    assert main(["info", str(model)]) == 0
    assert "from disk, at a speed that was not measured" in capsys.readouterr().out


# ---------------------------------------------------------------------------------------------- what is read


@pytest.mark.parametrize("count", (2, 7, 8, 81))
def test_what_is_read_lies_evenly_among_what_stays(count, monkeypatch):
    monkeypatch.setattr(budget, "resident_bytes", lambda unit: 1 << 30)
    order = budget._order_of_staying([[]] * count, from_disk=True)
    assert sorted(order) == list(range(count))
    for streamed in range(1, count):
        places = sorted(order[-streamed:])
        gaps = np.diff([*places, places[0] + count])
        assert gaps.max() <= 2 * -(-count // streamed)


def test_what_is_released_to_disk_is_read_again(model):
    with open_weights(model) as weights:
        span = weights.span("blk.3.ffn_up.weight")
        piece = Piece(pages.Mapped(span.map), span.start, span.start + span.nbytes)

        def read(step=populate):
            before, rest = blocks_read(), piece
            while left := step(rest):
                rest = rest._replace(start=rest.stop - left)
            return blocks_read() - before

        drop_from_page_cache(model)
        if not read():
            pytest.skip("the file system is in memory")
        release([piece])
        assert read() == 0
        release_to_disk([piece])
        assert read() * 512 >= 0.7 * span.nbytes
