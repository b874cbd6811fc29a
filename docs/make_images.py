"""The README's images: `python docs/make_images.py`.

`speed.svg` plots what `benchmarks/results/` has of the engine beside its peers. `generate.svg` shows a
terminal in which the commands of COMMANDS have just run. `serve_page.png` is the page of `airllm serve` in
chromium, after the questions of QUESTIONS.
"""

from __future__ import annotations

import io
import json
import os
import pty
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console
from rich.text import Text

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "benchmarks" / "results" / "engine_amd_epyc_zen_4_avx512_bf16.json"
COMMANDS = (
    'airllm generate smollm2 "Why is the sky blue?" -n 48',
    'airllm generate smollm2 "Explain what a compiler does in one sentence." --max-memory 64MB',
)
COLUMNS = 92
QUESTIONS = (
    "What is the capital of France?",
    "Why is the sky blue?",
    "Write a Python function that returns the factorial of n.",
)
GREEDY = "localStorage.setItem('airllm.settings', '{\"temperature\": 0, \"max_tokens\": 400}')"
# An implementation: its name on the plot and its colour.
BARS = {
    "airllm": ("airllm", "#2f6fb7"),
    "llama_cpp": ("llama.cpp", "#c9a227"),
    "ik_llama_cpp": ("ik_llama.cpp", "#9aa0a6"),
}
PANELS = {"decode": "one token after the other", "prefill": "a prompt of 512 tokens"}
# rich's own template loads a font from a server.
TERMINAL = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" class="rich-terminal">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ display: none; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


def tokens_per_second(case: dict[str, Any], what: str, name: str) -> float:
    """The median of all rounds, of the faster variant."""
    variants = [each for each in (name, f"{name} flash") if each in case["rounds"][0][what]]
    return max(median(turn[what][each] for turn in case["rounds"]) for each in variants)


def draw_speed(path: Path) -> None:
    """Bars of tokens per second, a panel for decode and one for prefill, a group for each format."""
    cases = json.loads(RESULTS.read_text())["cases"]
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    for axes, (what, title) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        for i, (name, (label, colour)) in enumerate(BARS.items()):
            places = [group + (i - 1) * 0.27 for group in range(len(cases))]
            heights = [tokens_per_second(case, what, name) for case in cases]
            bars = axes.bar(places, heights, width=0.25, color=colour, label=label)
            axes.bar_label(bars, fmt="%.0f", fontsize=8, padding=2, color="#444444")
        axes.set_xticks(range(len(cases)), [case["format"].upper() for case in cases])
        axes.set_title(f"tokens/s, {title}", fontsize=11, loc="left")
        axes.margins(y=0.1)  # the highest bar's label stays below the title
        axes.set_yticks([])
        axes.tick_params(length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False
    )
    with rc_context({"svg.hashsalt": path.name}):
        figure.savefig(path, metadata={"Date": None})


def run_on_terminal(command: str) -> str:
    """What a terminal of COLUMNS shows while the command runs."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    with subprocess.Popen(shlex.split(command), stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        text = b""
        while part := _read(ours):
            text += part
    os.close(ours)
    if process.returncode:
        raise SystemExit(f"{command} failed:\n{text.decode()}")
    return text.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    """The next bytes; none at the end, of which Linux says EIO."""
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""


def draw_terminal(path: Path) -> None:
    """The commands of COMMANDS and what they print."""
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        for command in COMMANDS:
            console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
            console.print(Text.from_ansi(run_on_terminal(command)))
        path.write_text(console.export_svg(code_format=TERMINAL, unique_id="airllm"))


def draw_page(path: Path) -> None:
    """The chat page, with the likeliest answers to QUESTIONS."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["airllm", "serve", "smollm2", "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            _photograph(f"http://127.0.0.1:{port}/", path)
        finally:
            server.terminate()


def _photograph(address: str, path: Path) -> None:
    sys.path.insert(0, str(HERE.parent / "tests" / "support"))
    from chat_page import ChatPage, open_browser, wait_for_server

    wait_for_server(address)
    driver = open_browser("chromium", "chromedriver", "--hide-scrollbars")
    try:
        page = ChatPage(driver, address)
        page.open(width=1120, height=600)
        page.run(GREEDY)
        page.reload()
        for question in QUESTIONS:
            page.click("#new")
            page.ask(question)
        path.write_bytes(_with_few_colours(driver.get_screenshot_as_png()))
    finally:
        driver.quit()


def _with_few_colours(png: bytes) -> bytes:
    small = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(64).save(small, "PNG", optimize=True)
    return small.getvalue()


if __name__ == "__main__":
    images = HERE / "images"
    draw_speed(images / "speed.svg")
    draw_terminal(images / "generate.svg")
    draw_page(images / "serve_page.png")
