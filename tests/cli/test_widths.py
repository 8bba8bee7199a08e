"""What people read at 80, 100 and 120 columns: no line is too long, and no number is broken or invented."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from tests.support.command_line import CommandLine
from tilegrad.report.output import Progress
from tilegrad.report.table import FittingTable, shortened, wrapped

WIDTHS = (80, 100, 120)
WIDE = 400
NUMBER = re.compile(r"\d[\d,.]*\d|\d")

COMMANDS = [
    ["zoo"],
    ["ops"],
    ["targets"],
    ["devices"],
    ["doctor"],
    ["inspect", "autoencoder_tiny"],
    ["inspect", "autoencoder_tiny", "--parameters"],
    ["inspect", "autoencoder_tiny", "--tiles"],
    ["inspect", "mlp", "--target", "mcu", "--optimizer", "adam"],
    ["compare", "autoencoder_tiny", "--no-verify"],
    ["compare", "simplemlp", "--l2", "2K", "--home", "L2", "--no-verify"],
    ["train", "simplemlp"],
    ["train", "simplemlp", "--device", "host", "--steps", "20", "--no-verify"],
    ["train", "simplemlp", "--device", "null"],
    ["infer", "simplemlp", "--device", "host"],
    ["gradcheck", "simplemlp", "--device", "host"],
    ["compile", "simplemlp", "--device", "host"],  # no -o: an error with a hint
]


def numbers(text: str) -> set[str]:
    """Times differ from run to run, and a line that says how wide a terminal should be is of this rendering alone."""
    kept = re.sub(r"(time: .*?\)|left out here: .*?\)|[\d.]+ (s|ms|µs)\b)", "", " ".join(text.split()))
    return set(NUMBER.findall(kept))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_fits_its_terminal(
    tilegrad: CommandLine, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDE))
    wide = tilegrad(*words)
    known = numbers(wide.out + wide.err)
    for width in WIDTHS:
        monkeypatch.setenv("COLUMNS", str(width))
        answer = tilegrad(*words)
        assert answer.status == wide.status
        for line in (answer.out + answer.err).splitlines():
            assert len(line) <= width or " " not in line.strip(), line  # a path that is longer than that stays whole
        assert numbers(answer.out + answer.err) <= known
        for shown in re.findall(r"^left out here: (.*?) \(", " ".join(answer.out.split("\n")), re.MULTILINE):
            assert shown


def test_what_is_left_out_is_named_with_how_to_see_it(
    tilegrad: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = " ".join(tilegrad("compare", "autoencoder_tiny", "--no-verify").out.split())
    said = re.search(r"left out here: (.*?) \(shown by a terminal of (\d+) columns, and in --json\)", text)
    assert said is not None and "L3-L2" in said[1].split(", ")
    monkeypatch.setenv("COLUMNS", said[2])
    assert "left out" not in tilegrad("compare", "autoencoder_tiny", "--no-verify").out


def test_does_not_fit_is_said_once(tilegrad: CommandLine) -> None:
    answer = tilegrad("inspect", "mlp", "--target", "mcu", "--optimizer", "adam")
    assert answer.status == 2
    assert (answer.out + answer.err).count("not fit") == 1 and answer.err.count("error:") == 1
    assert "--train last:" in answer.err
    answer = tilegrad("compare", "simplemlp", "--l2", "2K", "--home", "L2", "--no-verify")
    assert answer.status == 2 and (answer.out + answer.err).count("does not fit into") == 1


def test_doctor_and_devices_each_say_their_own(tilegrad: CommandLine) -> None:
    doctor, devices = tilegrad("doctor").out, tilegrad("devices").out
    for name in ("qemu:mps3-an547", "sim:pulp_small", "mppa:hw"):
        assert re.search(rf"^{name}\b", devices, re.MULTILINE) and not re.search(rf"^(device )?{name}\b", doctor)
    assert "tilegrad devices" in doctor
    assert not {line for line in doctor.splitlines() if len(line) > 40} & set(devices.splitlines())


# ---- tables by themselves


cells = st.one_of(
    st.integers(0, 10**12).map(lambda n: f"{n:,}"),
    st.floats(0, 1e6).map(lambda x: f"{x:.2f} MiB"),
    st.text("abc/._é世 0123456789", max_size=40),
)


@st.composite
def tables(draw: st.DrawFn) -> FittingTable:
    count = draw(st.integers(1, 7))
    names = [f"{draw(st.sampled_from(['a', 'used bytes', 'speed-up', 'of']))} {chr(97 + i)}" for i in range(count)]
    right = draw(st.lists(st.sampled_from(names), unique=True))
    spare = draw(st.lists(st.sampled_from(names[1:]), unique=True)) if count > 1 else []
    made = FittingTable(names, right, spare)
    for _ in range(draw(st.integers(0, 5))):
        made.add_row(*(draw(cells) for _ in names))
    return made


@settings(max_examples=150, deadline=None)
@given(tables(), st.integers(20, 200))
def test_a_table_never_breaks_or_makes_up_a_number(made: FittingTable, width: int) -> None:
    wide = "\n".join(line.plain for line in made.lines(10_000))
    lines = [line.plain for line in made.lines(width)]
    shown = re.sub(r"left\s+out\s+here:.*", "", "\n".join(lines), flags=re.DOTALL)
    assert set(re.findall(r"\d+", shown)) <= set(re.findall(r"\d+", wide))
    kept, _ = made._kept(width)
    if made._sum(made._least(i) for i in kept) <= width:
        assert all(Text(line).cell_len <= width for line in lines)


def test_columns_go_in_the_order_they_are_spared() -> None:
    made = FittingTable(["mode", "cycles", "tiles", "L3"], ("cycles", "tiles", "L3"), ("L3", "tiles"))
    made.add_row("double", "231,415", "1,234", "8.00 MiB")

    def headers(width: int) -> list[str]:
        return next(iter(made.lines(width))).plain.split()

    assert headers(40) == ["mode", "cycles", "tiles", "L3"]
    assert headers(30) == ["mode", "cycles", "tiles"]
    assert headers(20) == ["mode", "cycles"]
    assert headers(5) == ["mode", "cycles"], "what cannot be spared stays whole, however narrow"


@pytest.mark.parametrize(
    ("word", "width", "wanted"),
    [("short", 10, "short"), ("/layer1/conv12/Conv_Grad/SGD", 16, "/laye…v_Grad/SGD"), ("a123456789z", 6, "a…z")],
)
def test_long_words_keep_both_ends_and_no_part_of_a_number(word: str, width: int, wanted: str) -> None:
    assert shortened(word, width) == wanted


def test_prose_is_broken_between_words_and_paths_stay_whole() -> None:
    text = Text(f"written to {'/long' * 20} with 231,415 cycles\n  hint: nothing")
    lines = [line.plain for line in wrapped(text, 30)]
    assert "/long" * 20 in "".join(lines) and lines[-1] == "  hint: nothing"
    assert any("231,415" in line for line in lines)


# ---- progress


def line(progress: Progress) -> str:
    return progress.shown().strip()


def test_the_clock_goes_on_after_everything_was_counted() -> None:
    now = [0.0]
    console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    progress = Progress(console, now=lambda: now[0])
    told: list[str] = []
    for what, done, of, at in (
        ("train: mini-batch", 3, 3, 39.0),
        ("verify", 0, 1, 40.0),
        ("verify", 0, 1, 75.0),
        ("verify: mini-batch through the reference", 2, 3, 80.0),
    ):
        now[0] = at
        progress(what, done, of)
        told.append(line(progress)[2:])
    assert told == [
        "train: mini-batch 3 of 3 0:39",
        "verify 0:40",
        "verify 1:15",
        "verify: mini-batch through the reference 2 of 3 1:20",
    ]


def test_training_and_comparing_tell_how_far_they_are() -> None:
    from tilegrad.api import Recipe, load, open_device
    from tilegrad.targets import base as targets
    from tilegrad.training.comparison import compare_modes

    told: list[str] = []
    with open_device("sim:siracusa") as device:
        compare_modes(
            load("simplemlp"), Recipe(), targets.get("siracusa"), device, steps=2,
            progress=lambda what, done, of: told.append(what if of == 1 else f"{what} {done} of {of}"),
        )  # fmt: skip
    for number, mode in enumerate(("untiled", "single", "double"), 1):
        for what in ("compile", "build", "train: mini-batch 1 of 2", "verify: mini-batch through the reference 2 of 2"):
            assert f"{mode} ({number} of 3): {what}" in told


def _ticks(screen: str) -> Iterator[str]:
    return (match[0] for match in re.finditer(r"verify[^\r\n]*?\d+:\d\d", screen))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no terminals here")
def test_a_terminal_sees_time_pass(tmp_path: Path) -> None:
    """On a real terminal: the line is drawn again and again while one stage takes its time."""
    import pty
    import select
    import time

    master, slave = pty.openpty()
    program = (
        "import time\nfrom tilegrad.report.output import Progress\n"
        "with Progress() as progress:\n    progress('verify', 0, 1)\n    time.sleep(2.5)\n"
    )
    running = subprocess.Popen([sys.executable, "-c", program], stderr=slave, stdin=subprocess.DEVNULL, cwd=tmp_path)
    os.close(slave)
    screen, end = "", time.monotonic() + 60
    while time.monotonic() < end:
        if select.select([master], [], [], 0.2)[0]:
            try:
                screen += os.read(master, 65536).decode(errors="replace")
            except OSError:
                break
        elif running.poll() is not None:
            break
    os.close(master)
    assert running.wait() == 0 and len(set(_ticks(screen))) >= 2, screen
