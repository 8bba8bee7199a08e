"""Names with escape sequences, direction marks and NULs: none is obeyed by a terminal, none is lost in a file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import tilegrad as tg
from tests.support.command_line import CommandLine, finish, start
from tests.support.small_models import model, node, saved, weights
from tilegrad.pipeline import STAGES
from tilegrad.report.arrays import array_name, npz_bytes, tensor_name
from tilegrad.report.json import dumps
from tilegrad.visible import visible, visible_line

EVIL = "a\x1b[2J\x1b]0;title\x07b\x9b31mc\r\x08\u202ed\u2066e\x00f\x7fg\U000e0041\u200b"
OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)


def evil_model() -> onnx.ModelProto:
    proto = model(
        [node("Gemm", ["x", "w", "b"], ["h"], EVIL + "1"), node("Relu", ["h"], ["r"], EVIL + "2")],
        ["N", 8],
        ["N", 4],
        [weights("w", 8, 4), weights("b", 4)],
    )
    names = {"x": EVIL + "x", "w": EVIL + "w", "b": EVIL + "b", "h": EVIL + "h", "r": EVIL + "y"}
    for one in proto.graph.node:
        one.input[:] = [names[name] for name in one.input]
        one.output[:] = [names[name] for name in one.output]
    for tensor in proto.graph.initializer:
        tensor.name = names[tensor.name]
    proto.graph.input[0].name, proto.graph.output[0].name = names["x"], names["r"]
    proto.graph.name = EVIL
    return proto


@pytest.fixture
def evil_file(tmp_path: Path) -> Path:
    return saved(evil_model(), tmp_path, "evil\x1b[31m\u202e.onnx")


@pytest.mark.parametrize(
    "line",
    [
        ["inspect", "--parameters"],
        ["inspect"],
        ["inspect", "--tiles", "--device", "sim:siracusa"],
        ["inspect", "--json", "-"],
        ["train", "--train", "names:nothing"],
        ["train", "--train", f"names:{EVIL}"],
        pytest.param(["train", "--steps", "1"], marks=pytest.mark.slow),
        ["train", "--json", "-", "--steps", "1", "--no-verify"],
        pytest.param(["infer"], marks=pytest.mark.slow),
        pytest.param(["gradcheck"], marks=pytest.mark.slow),
        pytest.param(["compare", "--device", "sim:siracusa"], marks=pytest.mark.slow),
        *(["compile", "--dump-after", stage] for stage in STAGES),
        ["compile", "--dump-after", "plan", "--json", "-"],
    ],
)
def test_no_terminal_obeys_a_name(tilegrad: CommandLine, evil_file: Path, line: list[str]) -> None:
    device = [] if "--device" in line else ["--device", "host"]
    answer = tilegrad(line[0], evil_file, *line[1:], *device)
    assert answer.status in (0, 2)
    assert OBEYED.search(answer.out) is None and OBEYED.search(answer.err) is None
    assert "Traceback" not in answer.err


def test_names_in_errors_and_usage(tilegrad: CommandLine, tmp_path: Path) -> None:
    for line in (
        ["train", EVIL.replace("\0", "")],
        ["train", "mlp", "--device", EVIL],
        ["zoo", EVIL],
        [EVIL],
        ["--" + EVIL],
    ):
        answer = tilegrad(*line)
        assert answer.status == 2 and OBEYED.search(answer.err) is None, line
    broken = model([node(EVIL, ["x"], ["y"], EVIL)], ["N", 8], ["N", 8])
    answer = tilegrad("inspect", saved(broken, tmp_path))
    assert answer.status == 2 and OBEYED.search(answer.err) is None and "\\x1b[2J" in answer.err


def test_no_file_of_the_project_holds_them(tilegrad: CommandLine, tmp_path: Path, evil_file: Path) -> None:
    for device in ("host", "opencl:0"):
        target = ("--target", "opencl") if device == "opencl:0" else ("--device", device)
        out = tmp_path / device.partition(":")[0]
        assert tilegrad("compile", evil_file, *target, "-o", out).status == 0
        for path in out.rglob("*"):
            if path.is_file() and path.suffix != ".bin":
                assert OBEYED.search(path.read_text()) is None, path.name


def test_json_reads_back_as_it_was() -> None:
    text = dumps({"name": EVIL, EVIL: "é×"})
    assert OBEYED.search(text) is None and json.loads(text) == {"name": EVIL, EVIL: "é×"} and "é×" in text
    assert json.loads(dumps([EVIL, "é"], in_ascii=True)) == [EVIL, "é"] and dumps("é", in_ascii=True).isascii()


def test_what_is_shown() -> None:
    assert visible("a\x1b[0m\nb\tc") == "a\\x1b[0m\nb\tc" and visible_line("a\nb\tc") == "a\\x0ab\\x09c"
    assert visible("\u202e\U000e0041\ud800") == "\\u202e\\U000e0041\\ud800"
    assert visible("plain é × 重み ☺") == "plain é × 重み ☺"


# ---- files with arrays

NAMES = [
    "plain", "a/b.c", "a\0b", "a\0c", "a", "a%00b", "a%b", "100%", "%25", "%2500", "%\0", "%2\0", "a.npy", "a.npy.npy",
    "%2Enpy", "file", "arr_0", "", ".npy", "ü", EVIL, EVIL + "2", "..", "/etc/passwd", "a\\b",
]  # fmt: skip


def test_every_name_has_a_place_of_its_own(tmp_path: Path) -> None:
    arrays = {name: np.full(2, i, np.float32) for i, name in enumerate(NAMES)}
    (tmp_path / "w.npz").write_bytes(npz_bytes(arrays))
    with np.load(tmp_path / "w.npz") as read:
        back = {tensor_name(name): read[name] for name in read.files}
    assert back.keys() == arrays.keys() and all(np.array_equal(back[name], arrays[name]) for name in arrays)
    assert [array_name(name) for name in ("plain", "a/b.c", "100%", "ü")] == ["plain", "a/b.c", "100%", "ü"]


def test_saved_weights_of_hostile_names_load_back(tilegrad: CommandLine, tmp_path: Path, evil_file: Path) -> None:
    path = tmp_path / "w.npz"
    line = ("train", evil_file, "--device", "host", "--steps", 2, "--no-verify", "--save-weights", path)
    assert tilegrad(*line).status == 0
    with np.load(path) as read:
        saved_weights = {tensor_name(name): read[name] for name in read.files}
    assert set(saved_weights) == {EVIL + "w", EVIL + "b"}
    with tg.open_device("host") as device:
        session = device.load(tg.compile(evil_model(), tg.Recipe(), target="host"))
        session.set_parameters(saved_weights)
        assert all(np.array_equal(value, saved_weights[name]) for name, value in session.parameters().items())


def test_a_name_that_no_file_can_hold(tilegrad: CommandLine, tmp_path: Path) -> None:
    long = "n" * 70_000
    proto = model([node("Gemm", ["x", long], ["y"], "fc")], ["N", 8], ["N", 4], [weights(long, 8, 4)])
    path = tmp_path / "w.npz"
    line = ("train", saved(proto, tmp_path), "--device", "host", "--no-verify", "--save-weights", path)
    answer = tilegrad(*line)
    assert answer.status == 2 and "70,000 characters long" in answer.err and not path.exists()


# ---- temporary files


@pytest.mark.slow
def test_nothing_is_left_among_temporary_files(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {"TMPDIR": str(scratch)}
    for line in (["train", "simplemlp", "--device", "host", "--steps", "1"], ["infer", "simplemlp"], ["doctor"]):
        answer = finish(start(*line, environment=environment))
        assert answer.status == 0, answer.err
        assert list(scratch.iterdir()) == [], line
