"""What SECURITY.md promises of the source: nothing runs a model's code; each claim has its test."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Modules that make code or objects of files, and functions that run text.
UNSAFE_MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "yaml"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.load"}
# The signatures of ops, which are made of their declarations.
GENERATED = ROOT / "airllm" / "ops" / "signature_codegen.py"


def modules() -> list[Path]:
    return sorted((ROOT / "airllm").rglob("*.py"))


def test_nothing_that_runs_code_is_used():
    """No pickles, no text that becomes code, no shell; arrays are loaded without objects."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path in modules()
        for line, what in unsafe_uses(ast.parse(path.read_text()))
        if path != GENERATED
    ]
    assert found == []
    assert {what for _, what in unsafe_uses(ast.parse(GENERATED.read_text()))} == {"exec", "compile"}
    hostile = "import pickle\nfrom yaml import load\ntorch.load(x)\nos.system(x)\nrun(x, shell=True)\n"
    hostile += "np.load(x, allow_pickle=True)\nf(trust_remote_code=True)\n"
    assert [line for line, _ in unsafe_uses(ast.parse(hostile))] == [1, 2, 3, 4, 5, 6, 7]


def unsafe_uses(tree: ast.Module):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {(node.module or "").partition(".")[0]} if not node.level else set()
        else:
            names = set()
        yield from ((node.lineno, name) for name in names & UNSAFE_MODULES)
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in UNSAFE_CALLS:
                yield node.lineno, name
            for each in node.keywords:
                told = each.arg in ("shell", "allow_pickle", "trust_remote_code")
                if told and not (isinstance(each.value, ast.Constant) and each.value.value is False):
                    yield node.lineno, str(each.arg)


def test_each_claim_names_a_test_that_there_is():
    text = (ROOT / "SECURITY.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("|---")]
    headers = [row for row in rows if row.endswith(("| Shown by |", "| Test |"))]
    assert len(headers) == 3 and len(rows) >= 40
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row.rsplit(" | ", 1)[-1])
        assert named or row in headers, f"no test: {row}"
        for file, test in named:
            assert f"def {test}(" in (ROOT / file).read_text() or not test, f"{file} has no {test}"


def test_the_table_of_failures_has_every_test_of_faults():
    text = (ROOT / "SECURITY.md").read_text()
    for path in sorted((ROOT / "tests" / "faults").glob("test_*.py")):
        for test in re.findall(r"^def (test_\w+)", path.read_text(), re.M):
            assert f"`{path.relative_to(ROOT)}::{test}`" in text, f"SECURITY.md lacks {test}"
