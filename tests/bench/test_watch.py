"""What the watch finds in made-up tables, and in the stored ones."""

import json
from pathlib import Path

import pytest

from airllm.bench import report
from benchmarks import record
from benchmarks.watch import __main__ as command
from benchmarks.watch import compare, figures, run
from benchmarks.watch.watched import NOT_WATCHED, REMEDIES, WATCHED, Watched

BENCHMARKS = Path(record.__file__).parent
MACHINE = {"cpu": "A CPU", "isa": "avx2", "cores": 2, "versions": {"airllm": "1", "torch": "2.0"}}
OF = {each.table: each for each in WATCHED}
STORED = {"torch": (2.0, 2.2), "numpy": (5.0, 5.0)}


def timing(median, spread=0.0):
    return {"median": median, "low": median * (1 - spread), "high": median * (1 + spread)}


def write(folder, ratios, ours=1e-3, what="silu", spread=0.0, **machine):
    """A table of ops: for each peer, its time over ours in both passes."""
    folder.mkdir(parents=True, exist_ok=True)
    passes = [
        [
            {"op": what, "rows": 1, "cols": 64, "tensor_ops": timing(ours)}
            | {peer: timing(ours * each[half], spread) for peer, each in ratios.items()}
        ]
        for half in (0, 1)
    ]
    result = {"date": "2026-01-02", "machine": MACHINE | machine, "passes": passes}
    (folder / "ops_a_cpu.json").write_text(json.dumps(result))


@pytest.fixture
def watch(tmp_path, capsys):
    """Compares made-up ratios with STORED: the exit code, and what is printed."""
    write(tmp_path / "stored", STORED)

    def compared(now=None, *arguments, **options):
        if now is not None:
            write(tmp_path / "measured", now, **options)
            arguments += ("--measured", str(tmp_path / "measured"))
        code = command.main(["ops", "--stored", str(tmp_path / "stored"), *arguments])
        return code, capsys.readouterr().out

    return compared


@pytest.mark.parametrize("halves", [(2.1, 1.9), (1.93, 1.95), (2.2, 1.5), (2.29, 2.25)])
def test_ranges_that_meet_or_nearly_meet_have_not_moved(watch, halves):
    code, printed = watch(STORED | {"torch": halves})
    assert code == 0 and "ops: 2 ratios beside those of 2026-01-02" in printed
    assert "0 slower, 0 faster" in printed and "SLOWER" not in printed


def test_a_ratio_that_fell_is_slower_and_the_exit_code_says_so(watch):
    code, printed = watch(STORED | {"torch": (1.5, 1.6)}, ours=2e-3)
    assert code == 1 and "1 slower, 0 faster" in printed
    assert "| ops | silu 1x64 | torch | SLOWER | 2.00-2.20x | 1.50-1.60x | 0.74x | 2.00x | 1.48x |" in printed


def test_the_spread_of_the_samples_counts(watch):
    halves = {"torch": (1.8, 1.85)}
    assert watch(STORED | halves, spread=0.02)[0] == 1
    code, printed = watch(STORED | halves, spread=0.08)
    assert code == 0 and "0 slower" in printed


def test_the_quartiles_of_rounds_count():
    rates = [{"airllm": rate, "llama_cpp": 10.0} for rate in (10.0, 11.0, 15.0, 10.0, 11.0, 15.0)]
    cases = [{"model": "m", "rounds": [{"decode": each, "prefill": each} for each in rates]}]
    found = compare.ratios({"cases": cases}, figures.engines("model"), {"llama_cpp": ("llama_cpp",)})
    ratio = found["m decode", "llama_cpp"]
    assert ratio.halves == pytest.approx((1.1, 1.1))
    assert (ratio.low, ratio.high) == pytest.approx((1.025, 1.4))


def test_a_ratio_that_rose_is_no_failure(watch):
    code, printed = watch(STORED | {"torch": (3.0, 2.9)})
    assert code == 0 and "0 slower, 1 faster" in printed
    assert "| ops | silu 1x64 | torch | faster | 2.00-2.20x | 2.90-3.00x | 1.41x | 1.00x | 1.40x |" in printed


def test_times_that_doubled_on_both_sides_have_not_moved(watch):
    assert watch(STORED, ours=2e-3)[0] == 0


def test_the_margin_is_an_option(watch):
    assert watch(STORED | {"torch": (1.93, 1.95)}, "--margin", "0.01")[0] == 1


def test_a_peer_that_is_not_there_is_said(watch):
    code, printed = watch({"numpy": (5.0, 5.0)})
    assert (
        code == 0 and "NOT COMPARED with torch, which is not there: 1 ratios (pip install torch)" in printed
    )


def test_a_benchmark_without_any_ratio_is_not_compared_and_the_exit_code_says_so(watch):
    code, printed = watch({})
    assert code == 2 and "ops: NOT COMPARED: 0 ratios" in printed


def test_what_a_benchmark_could_not_measure_is_said(watch, tmp_path):
    write(tmp_path / "measured", STORED)
    table = tmp_path / "measured" / "ops_a_cpu.json"
    table.write_text(json.dumps(json.loads(table.read_text()) | {"missing": ["torch", "q8_0 (no file)"]}))
    printed = watch(None, "--measured", str(tmp_path / "measured"))[1]
    assert "NOT MEASURED: q8_0 (no file)" in printed and "NOT MEASURED: torch" not in printed


def test_a_case_that_the_short_run_leaves_out_is_no_missing_peer(watch, tmp_path):
    code, printed = watch(STORED, what="gelu")
    assert code == 2 and "0 ratios" in printed and "NOT COMPARED with" not in printed


def test_another_machine_is_said_and_no_times_are_compared(watch):
    versions = MACHINE["versions"] | {"torch": "2.1"}
    code, printed = watch(STORED | {"torch": (1.5, 1.6)}, cores=4, versions=versions)
    said = "cores 2 then, 4 now; torch 2.0 then, 2.1 now. Another machine: only ratios are compared"
    assert said in printed and "| slower | 2.00-2.20x | 1.50-1.60x | 0.74x | - | - |" in printed
    assert code == 2 and "which may be why: ops. Tables" in printed and "SLOWER" not in printed


def test_of_another_machine_it_is_no_matter_if_nothing_became_slower(watch):
    code, printed = watch(STORED | {"torch": (3.5, 3.6)}, cores=4)
    assert code == 0 and "Another machine" in printed and "which may be why" not in printed


def test_the_table_of_the_same_instruction_set_is_taken(tmp_path):
    for isa in ("avx512", "avx2"):
        write(tmp_path, STORED, isa=isa)
        (tmp_path / "ops_a_cpu.json").rename(tmp_path / f"ops_other_{isa}.json")
    found = run.stored_table(OF["ops"], tmp_path, MACHINE | {"cpu": "another"})
    assert found["machine"]["isa"] == "avx2"


@pytest.mark.parametrize(
    ("isas", "here", "taken"),
    [
        (("avx2", "avx512_bf16"), "avx512_amx", "avx512_bf16"),
        (("avx512_bf16", "avx_vnni"), "avx2", "avx_vnni"),
        (("avx2", "neon"), "neon_i8mm", "neon"),
    ],
)
def test_else_the_table_of_the_nearest_instruction_set(tmp_path, isas, here, taken):
    """Products of AVX-512 are not beside those of AVX2 if a table of an AVX-512 is there."""
    for number, isa in enumerate(isas):
        table = {"date": "2026-01-02", "machine": MACHINE | {"isa": isa}}
        (tmp_path / f"ops_{number}.json").write_text(json.dumps(table))
    assert run.stored_table(OF["ops"], tmp_path, MACHINE | {"isa": here})["machine"]["isa"] == taken


def test_of_tables_that_are_as_near_the_newest_is_taken(tmp_path):
    for date in ("2026-01-02", "2026-01-03", "2026-01-01"):
        table = {"date": date, "machine": MACHINE | {"cpu": "another"}}
        (tmp_path / f"ops_{date}.json").write_text(json.dumps(table))
    assert run.stored_table(OF["ops"], tmp_path, MACHINE)["date"] == "2026-01-03"


def test_without_a_table_nothing_is_compared_and_the_exit_code_says_so(watch, tmp_path):
    (tmp_path / "stored" / "ops_a_cpu.json").unlink()
    code, printed = watch(STORED)
    assert code == 2 and "python benchmarks/bench_ops.py makes one" in printed


def test_what_moved_is_measured_again_and_both_runs_count(watch, tmp_path, monkeypatch):
    turns = iter([(1.5, 1.6), (2.0, 2.1)])
    folders = []

    def measure(of, folder, given):
        folders.append(folder.name)
        write(folder, STORED | {"torch": next(turns)})

    monkeypatch.setattr(run, "run", measure)
    kept = str(tmp_path / "kept")
    assert watch(None, "--output", kept)[0] == 0 and folders == ["first", "again"]
    assert command.main(["ops", "--stored", str(tmp_path / "stored"), "--measured", kept]) == 0
    turns = iter([STORED["torch"]])
    assert watch(None, "--output", kept)[0] == 0 and folders == ["first", "again", "first"]
    assert not list((tmp_path / "kept" / "again").iterdir())  # it was of the earlier watch
    turns = iter([(1.5, 1.6)])
    assert watch(None, "--once")[0] == 1


def test_a_benchmark_that_fails_is_said_with_its_last_line(watch, monkeypatch):
    broken = Watched("ops", "bench_ops.py", "--sizes 8by8", OF["ops"].read, OF["ops"].peers)
    monkeypatch.setattr(command, "WATCHED", (broken,))
    code, printed = watch()
    assert code == 2 and "ops: NOT COMPARED: bench_ops.py: " in printed and "8by8" in printed


def test_an_unknown_benchmark_is_refused(capsys):
    with pytest.raises(SystemExit):
        command.main(["opps"])
    assert "unknown: opps; expected of ops, fused" in capsys.readouterr().err


def test_every_benchmark_is_watched_or_says_why_not():
    scripts = {path.name for path in BENCHMARKS.glob("bench_*.py")}
    assert {each.script for each in WATCHED} | set(NOT_WATCHED) == scripts
    assert not {each.script for each in WATCHED} & set(NOT_WATCHED)


@pytest.mark.parametrize("name", OF)
def test_the_stored_tables_have_a_ratio_to_each_peer(name):
    tables = run.tables_in(record.RESULTS, name)
    assert tables, f"no stored table of {name}"
    found = [{peer for _, peer in run.ratios_of(OF[name], run.load(path))} for path in tables]
    assert set().union(*found) == set(OF[name].peers)


@pytest.mark.parametrize(
    ("name", "peers"),
    {"ops": ["numpy", "torch"], "fused": ["torch"], "matmul": ["numpy", "torch"],
     "one_row": ["numpy"], "products": ["ggml"], "dequantize": ["gguf"], "engine": ["llama_cpp"]}.items(),
)  # fmt: skip
def test_the_ratios_are_those_that_the_table_shows(name, peers):
    """The scripts compute them apart, for the .md file."""
    for path in run.tables_in(record.RESULTS, name):
        shown = path.with_suffix(".md").read_text()
        ratios = run.ratios_of(OF[name], run.load(path))
        for (what, peer), ratio in ratios.items():
            text = " / ".join(f"{report.figures(half)}x" for half in ratio.halves)
            assert peer not in peers or text in shown, (path.name, what, peer, text)
        assert {peer for _, peer in ratios} >= set(peers)


def test_the_faster_of_a_peers_sides_counts():
    def read(result):
        costs = {"airllm": [1.0, 2.0, 1.0], "plain": [9.0, 9.0, 9.0], "flash": [2.0, 6.0, 2.5]}
        yield "a call", {side: [figures.Cost(*3 * [each]) for each in of] for side, of in costs.items()}

    found = compare.ratios({}, read, {"peer": ("plain", "flash"), "another": ("none",)})
    assert found == {("a call", "peer"): compare.Ratio((2.5, 2.5), 2.25, 2.75, 1.0, 2.5)}


def test_each_peer_that_needs_more_than_airllm_has_a_remedy():
    itself = {
        "the kernel",
        "in memory",
        "engine",
        "ops",
        "without drafts",
        "one sequence",
        "computed",
        "numpy",
    }
    assert {peer for each in WATCHED for peer in each.peers} - itself == set(REMEDIES)
