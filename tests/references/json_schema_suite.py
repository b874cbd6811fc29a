"""Make tests/data/json_schema_suite.json: the cases of the JSON Schema Test Suite for draft 2020-12.

The sdist of the package jsonschema has the suite:

    pip download --no-deps --no-binary :all: jsonschema && tar xzf jsonschema-*.tar.gz
    python -m tests.references.json_schema_suite jsonschema-*/json
"""

import json
import sys
from pathlib import Path


def main(suite: Path) -> None:
    files = sorted((suite / "tests" / "draft2020-12").glob("*.json"))
    cases = [{"file": file.stem, **case} for file in files for case in json.loads(file.read_text())]
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    license = json.dumps((suite / "LICENSE").read_text())
    target = Path(__file__).parents[1] / "data" / "json_schema_suite.json"
    target.write_text(f'{{"license":{license},\n"cases":[\n{lines}\n]}}\n')


if __name__ == "__main__":
    main(Path(sys.argv[1]))
