"""Runs what the documents tell people to run, and brings what they show up to date.

Conventions, in any document:

- A `sh` block is run line by line in the document's own empty folder, in order. A comment `# exit status N` says what a
  command ends with; otherwise it is 0. `make` and `pip` lines are checked, not run (see `check_command`).
- A `python` block is a program of its own, run in the same folder.
- `<!-- output -->` before a `text` block: the output of the last command. Numbers may differ, words may not.
- `<!-- excerpt: FILE :: START :: STOP -->` before a block: the lines of FILE (in the folder, or in this repository)
  from the one that contains START up to the one that contains STOP, or to the `end of file`; without STOP, to the
  next line that is `}` alone.
- Between `figures:begin` and `figures:end`: the table that `figures.py` makes. Between `benchmarks:begin` and
  `benchmarks:end`: what `make bench` left in `benchmarks/RESULTS.md`.

`python -m tests.docs --update [DOCUMENT…]` rewrites all of these; with `--figures` it runs no command.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
COLUMNS = 120
TIMEOUT_SECONDS = 280

_BLOCK = re.compile(
    r"^(?:<!-- (?P<marker>[^\n]*) -->\n)?```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
_STATUS = re.compile(r"#\s*exit status (\d+)")
_TIMES = re.compile(r"^time: .*$", re.MULTILINE)
_CONTINUED = re.compile(r"\n {2,}(?=\S)")  # a long line is broken where its numbers end, which differs
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


def documents() -> list[Path]:
    return [
        *sorted(ROOT.glob("*.md")),
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "examples").glob("**/README.md")),
    ]


@dataclass(frozen=True)
class Block:
    marker: str
    language: str
    body: str
    start: int  # of the body, in the document
    stop: int


def blocks(text: str) -> list[Block]:
    return [
        Block(match["marker"] or "", match["language"], match["body"], match.start("body"), match.end("body"))
        for match in _BLOCK.finditer(text)
    ]


def runs_something(text: str) -> bool:
    return any(block.language in ("sh", "python") or block.marker.startswith("excerpt:") for block in blocks(text))


def needs_torch(text: str) -> bool:
    return any("import torch" in block.body for block in blocks(text) if block.language == "python")


def masked(text: str) -> str:
    """Without what may differ between machines: times, numbers, and how wide a column is."""
    whole_lines = _CONTINUED.sub(" ", text)
    return re.sub(r"[ \t]+", " ", _NUMBER.sub("#", _TIMES.sub("time: #", whole_lines))).strip()


def run(command: list[str], folder: Path, status: int = 0) -> str:
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS, env=environment
    )
    assert done.returncode == status, f"{shlex.join(command)}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return "\n".join(line.rstrip() for line in done.stdout.splitlines()) + "\n"


def check_command(words: list[str]) -> None:
    """What is not run: `make` goals exist, `pip` names extras that exist, our own tests exist."""
    if words[0] == "make":
        folder = ROOT / words[words.index("-C") + 1] if "-C" in words else ROOT
        given = [word for before, word in pairwise(words) if before != "-C"]
        goals = [word for word in given if not word.startswith("-") and "=" not in word]
        makefile = (folder / "Makefile").read_text(encoding="utf-8")
        for goal in goals:
            assert re.search(rf"^{re.escape(goal)}:", makefile, re.MULTILINE), f"no goal {goal} in the Makefile"
    elif words[0] == "pip":
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        for extra in re.findall(r"\[([\w,]+)\]", " ".join(words)):
            for name in extra.split(","):
                assert re.search(rf"^{name} = \[", project, re.MULTILINE), f"no extra {name}"
    else:
        for word in words:
            if word.startswith(("tests/", "examples/", "benchmarks/")):
                assert (ROOT / word.split("::")[0]).exists(), f"no {word}"


def _located(word: str) -> str:
    """Documents name examples from the root of the repository."""
    return str(ROOT / word) if word.startswith("examples/") else word


def run_line(line: str, folder: Path) -> str:
    status = _STATUS.search(line)
    words = shlex.split(line, comments=True)
    if not words:
        return ""
    expected = int(status[1]) if status else 0
    if words[0] == "tilegrad":
        return run([sys.executable, "-m", *map(_located, words)], folder, expected)
    if words[0] == "python" and "pytest" not in words and "--update" not in words:
        return run([sys.executable, *map(_located, words[1:])], folder)
    check_command(words)
    return ""


def excerpt(folder: Path, marker: str) -> str:
    name, start_text, *stop_text = (part.strip() for part in marker.removeprefix("excerpt:").split(" :: "))
    path = next(p for p in (folder / name, ROOT / name) if p.exists())
    lines = path.read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if start_text in line)
    if stop_text == ["end of file"]:
        stop = len(lines)
    elif stop_text:
        stop = next(i for i in range(start + 1, len(lines)) if stop_text[0] in lines[i])
    else:
        stop = lines.index("}", start) + 1
    return "\n".join(lines[start:stop]).rstrip("\n") + "\n"


def _between(text: str, name: str, content: str) -> str:
    """The document with what lies between the comments `NAME:begin` and `NAME:end` replaced."""
    pattern = rf"(<!-- {name}:begin[^\n]*-->\n).*?(<!-- {name}:end -->)"
    return re.sub(pattern, lambda match: match[1] + content + match[2], text, flags=re.DOTALL)


def _benchmarks() -> str:
    """The results without their title."""
    title, _, body = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8").partition("\n\n")
    assert title.startswith("# ")
    return body


def with_figures(text: str) -> str:
    """The table of what programs need is computed; it is the same on every machine."""
    from tests.docs.figures import figures_table

    return _between(text, "figures", figures_table()) if "figures:begin" in text else text


def with_benchmarks(text: str) -> str:
    """What `make bench` last measured: taken over on request only, for it differs from machine to machine."""
    return _between(text, "benchmarks", _benchmarks()) if "benchmarks:begin" in text else text


def refreshed(text: str, folder: Path, *, keep_outputs: bool) -> str:
    """The document after running it; with `keep_outputs`, an output that differs in numbers only is left as it is."""
    output = ""
    pieces = []
    position = 0
    for block in blocks(text):
        body = block.body
        if block.marker == "output":
            body = body if keep_outputs and masked(body) == masked(output) else output
        elif block.marker.startswith("excerpt:"):
            body = excerpt(folder, block.marker)
        elif block.language == "sh":
            for line in block.body.splitlines():
                output = run_line(line, folder) or output
        elif block.language == "python":
            program = folder / "block.py"
            program.write_text(block.body, encoding="utf-8")
            output = run([sys.executable, program.name], folder)
        pieces += [text[position : block.start], body]
        position = block.stop
    return with_figures("".join(pieces) + text[position:])
