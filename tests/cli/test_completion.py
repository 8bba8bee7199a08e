"""What a shell offers, as the shells themselves see it; and how much a command says."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine

BASH = """source {script}
COMP_LINE={line!r} COMP_POINT=${{#COMP_LINE}} COMP_WORDBREAKS=$' \\t\\n"\\'><=;|&(:'
_tilegrad
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
ZSH = """compdef() {{ : }}
compadd() {{ shift; print -l -- "$@" }}
_files() {{ print FILES }}
source {script}
words=({words}) CURRENT={count} PREFIX={last!r}
_tilegrad
"""


def bash(script: Path, line: str) -> set[str]:
    return said(["bash", "-c", BASH.format(script=script, line=line)])


def fish(script: Path, line: str) -> set[str]:
    lines = said(["fish", "--no-config", "-c", f"source {script}; complete -C {line!r}"])
    return {line.split("\t")[0] for line in lines}


def zsh(script: Path, line: str) -> set[str]:
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    return said(["zsh", "-f", "-c", ZSH.format(script=script, words=quoted, count=len(words), last=words[-1])])


def said(command: list[str]) -> set[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == "", done.stderr
    return set(done.stdout.split("\n")) - {""}


@pytest.mark.parametrize("ask", [bash, zsh, fish], ids=lambda ask: ask.__name__)
def test_names_are_completed(ask: object, tilegrad: CommandLine, tmp_path: Path) -> None:
    assert callable(ask)
    if shutil.which(ask.__name__) is None:
        pytest.skip(f"{ask.__name__} is not installed")
    script = tmp_path / f"tilegrad.{ask.__name__}"
    script.write_text(tilegrad("completion", ask.__name__).out)
    assert {"train", "explore", "checkpoint"} <= ask(script, "tilegrad ")
    assert "resnet8" in ask(script, "tilegrad train res")
    assert {"siracusa", "gap9"} <= ask(script, "tilegrad compare resnet8 --target ")
    assert {"auto", "single", "double"} <= ask(script, "tilegrad train mlp --buffering ")
    assert {"--device", "--quiet"} <= ask(script, "tilegrad infer --")
    assert {"show", "export", "diff"} <= ask(script, "tilegrad checkpoint ")
    devices = ask(script, "tilegrad train mlp --device sim:s")
    assert {"siracusa", "sim:siracusa"} & devices
    assert "resnet8" not in ask(script, "tilegrad train mlp --json ")


def test_an_unknown_shell(tilegrad: CommandLine) -> None:
    answer = tilegrad("completion", "tcsh")
    assert answer.status == 2 and "bash or zsh or fish" in answer.err


def test_quiet_and_verbose(tilegrad: CommandLine, tmp_path: Path) -> None:
    words = ("inspect", "simplemlp", "--json", tmp_path / "j")
    usual, quiet, verbose = tilegrad(*words), tilegrad(*words, "-q"), tilegrad("inspect", "simplemlp", "-v")
    assert usual.out and quiet.out == "" and quiet.err == "" and (tmp_path / "j").exists()
    assert verbose.out == usual.out and " s  import" in verbose.err
    assert tilegrad(*words).out == usual.out, "it stays quiet"
    wrong = tilegrad("inspect", "nothing", "-q")
    assert wrong.status == 2 and wrong.err.startswith("error: ")
    assert tilegrad(*words, "-q", "-v").status == 2


def test_all_help(tilegrad: CommandLine) -> None:
    answer = tilegrad("--help-all")
    assert answer.status == 0
    for command in ("train", "explore", "checkpoint diff", "completion"):
        assert f"Usage: tilegrad {command} " in answer.out
