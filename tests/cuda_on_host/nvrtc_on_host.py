"""Compiles the text of kernels to a library for this processor, once for each text; writes down its path.

python nvrtc_on_host.py TEXT.cu
"""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.cuda_on_host.build import compiler_of_kernels

BEGIN = "extern int text_begins;"
KERNEL = re.compile(r'extern "C"\s+(?:__attribute__\(\(\w+\)\)\s*)?void\s+(\w+)\s*\(')


def names_of(text: str, compiler: list[str], folder: Path) -> list[str]:
    """The kernels that a text defines, most of them by macros."""
    source = folder / "names.cpp"
    source.write_text(f"{BEGIN}\n{text}")
    expanded = subprocess.run(
        [*compiler, "-E", "-P", str(source)], capture_output=True, text=True, check=True
    )
    return sorted(set(KERNEL.findall(expanded.stdout.partition(BEGIN)[2])))


def main() -> None:
    given = Path(sys.argv[1])
    text, compiler = given.read_text(), compiler_of_kernels()
    library = given.parent / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=given.parent) as name:
            folder = Path(name)
            names = names_of(text, compiler, folder)
            assert names, "a text without kernels"
            source = folder / "kernels.cpp"
            source.write_text("\n".join([text, *(f"ON_HOST_KERNEL({each})" for each in names)]))
            subprocess.run([*compiler, "-shared", str(source), "-o", str(folder / "made.so")], check=True)
            os.replace(folder / "made.so", library)
    given.with_suffix(".path").write_text(str(library))


if __name__ == "__main__":
    main()
