"""What is drawn of a run: the same figures in the record, the page, the trace and the run itself."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.schedule.programs import compiled_for, siracusa
from tests.support.projects import zoo_model
from tilegrad.devices.registry import open_device
from tilegrad.errors import DeviceError, UserError
from tilegrad.report.picture import plots, trace
from tilegrad.report.picture.page import page
from tilegrad.report.picture.plots import PLOTS, check_plot, plot_bytes
from tilegrad.report.picture.record import FILE, VERSION, read_record, record_bytes, record_of
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.training import train as training
from tilegrad.training.train import Run

KIB = 1024


@cache
def run_of(name: str, l1_kib: int = 64) -> Run:
    with open_device("sim:siracusa") as device:
        compiled = compiled_for(name, siracusa(l1_kib * KIB), ScheduleOptions())
        return training.train(compiled, device, steps=2, verify=False, keep_gradients=False)


@cache
def record(name: str) -> Mapping[str, Any]:
    made: dict[str, Any] = json.loads(record_bytes(record_of([(None, run_of(name))])))
    return made


@pytest.mark.parametrize("name", ["simplemlp", "dscnn"])
def test_slices_are_the_cycles(name: str) -> None:
    mode, run = record(name)["modes"][0], run_of(name)
    step = mode["timeline"]["step"]
    assert round(step["cycles"]) == run.cycles["step"] == mode["run"]["cycles"]["step"]
    cores = step["tracks"].index("cores")
    computed = sum(b - a for t, a, b in zip(step["track"], step["start"], step["end"], strict=True) if t == cores)
    assert computed == pytest.approx(run.estimates["step"].compute_cycles, rel=1e-3)
    assert max(step["end"]) <= step["cycles"] + 1
    operators = [row for row in mode["operators"] if row["entry"] == "step"]
    total = sum(row["cycles"] for row in operators) + mode["entries"]["step"]["before_first_cycles"]
    assert total == pytest.approx(step["cycles"], abs=len(operators))
    assert sum(row["macs"] for row in operators) == run.macs_per_step
    moved = run.estimates["step"].hops["L2-L1"].size_bytes
    assert sum(row["traffic_bytes"] for row in operators) == moved == mode["hops"]["L2-L1"]["bytes"]


@pytest.mark.parametrize("name", ["simplemlp", "dscnn"])
def test_no_byte_is_held_twice(name: str) -> None:
    """Seen from the picture alone: boxes of one level do not overlap, and stay below what is said to be used."""
    for own in record(name)["modes"][0]["memory"].values():
        for level, one in own["levels"].items():
            boxes = [(start, stop, at, at + size) for _, _, _, at, size, start, stop, _, _ in one["buffers"]]
            assert max(box[3] for box in boxes) <= one["used"]
            if level == "L1":
                continue  # tables come while the nest before computes
            live = sorted(boxes)
            for i, (start, stop, low, high) in enumerate(live):
                for other in live[i + 1 :]:
                    if other[0] >= stop:
                        break
                    assert other[3] <= low or high <= other[2] or start == stop, (level, live[i], other)


def test_the_most_that_is_alive_is_the_lower_bound() -> None:
    levels = record("dscnn")["modes"][0]["memory"]["step"]["levels"]
    most = max(size for _, size in levels["L2"]["live"])
    assert 0.98 * levels["L2"]["lower_bound"] <= most <= levels["L2"]["lower_bound"]


def test_every_operator_has_its_c() -> None:
    made = record("dscnn")
    for row in made["modes"][0]["operators"]:
        assert "static void" in made["code"]["nodes"][row["node"]], row
        assert made["code"]["kernels"][row["kernel"]].startswith(f"TG_KERNEL void tg_{row['kernel']}(")


def test_forward_and_gradient_stand_side_by_side() -> None:
    graph = record("mlp")["graph"]
    names = [row["name"] for row in graph["rows"]]
    layers = graph["rows"][: names.index("loss/SoftmaxCrossEntropyLoss") + 1]
    assert names[0] == "/fc1/Gemm" and len(layers) > 3
    assert all(row["forward"] and row["gradient"] for row in layers)
    assert [tuple(edge) for edge in graph["edges"]][:2] == [(0, 1), (1, 2)]


def test_a_flat_memory_has_a_map_and_no_timeline() -> None:
    compiled = zoo_model("simplemlp")
    with open_device("host") as device:
        made = record_of([(None, training.train(compiled, device, steps=1, verify=False))])
    (mode,) = made["modes"]
    assert not mode["timeline"] and mode["roofline"] is None and mode["memory"]["step"]["unit"] == "launches"
    with pytest.raises(UserError, match="nothing to trace"):
        trace.trace_bytes(Path("t.json"), made)


def test_the_page_is_one_file_and_names_are_not_markup() -> None:
    hostile = {**record("simplemlp"), "title": "</script><img src=x onerror=alert(1)> @RECORD@ <!--"}
    text = page(hostile).decode()
    plain = page(record("simplemlp")).decode()
    assert not re.search(r"(?:src|href)\s*=|@import|fetch\(|XMLHttpRequest|WebSocket|import\(", plain)
    assert "<img" not in text and "<!--" not in text and text.count("</script>") == 3
    assert page(record("simplemlp")) == page(record("simplemlp"))


# ---- traces


def test_chrome_trace() -> None:
    made = json.loads(trace.trace_bytes(Path("t.json"), record("dscnn")))
    lanes: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in made["traceEvents"]:
        if event["ph"] == "X":
            start = round(1000 * event["ts"])
            lanes[event["pid"], event["tid"]].append((start, start + round(1000 * event["dur"])))
    for spans in lanes.values():
        spans.sort()
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
    whole = {e["name"]: e["args"]["cycles"] for e in made["traceEvents"] if e.get("cat") == "entry"}
    assert whole["step"] == run_of("dscnn").cycles["step"]
    assert {e["name"] for e in made["traceEvents"] if e["ph"] == "C"} >= {"L1 bytes", "L2 bytes"}


def test_perfetto_trace_by_its_own_protobufs() -> None:
    module = "perfetto.protos.perfetto.trace.perfetto_trace_pb2"
    schema = pytest.importorskip(module, reason="perfetto is not installed")
    parsed = schema.Trace.FromString(trace.trace_bytes(Path("t.pftrace"), record("dscnn")))
    described = [packet.track_descriptor for packet in parsed.packet if packet.HasField("track_descriptor")]
    names = {one.uuid: one.name for one in described}
    open_slices: dict[int, list[int]] = defaultdict(list)
    time = computed = 0
    for packet in parsed.packet:
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        assert event.track_uuid in names
        if event.type == schema.TrackEvent.TYPE_SLICE_BEGIN:
            assert packet.timestamp >= time
            open_slices[event.track_uuid].append(packet.timestamp)
        elif event.type == schema.TrackEvent.TYPE_SLICE_END:
            length = packet.timestamp - open_slices[event.track_uuid].pop()
            assert length >= 0
            computed += length if names[event.track_uuid] == "cores" else 0
        if event.type != schema.TrackEvent.TYPE_COUNTER:
            time = packet.timestamp
    assert not any(open_slices.values())
    both = sum(timing.compute_cycles for timing in run_of("dscnn").compiled.timing.values())
    assert computed == pytest.approx(both, rel=2e-3)


def test_without_perfetto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "perfetto.protos.perfetto.trace", None)
    with pytest.raises(DeviceError, match="package 'perfetto'"):
        trace.check_trace(Path("t.pftrace"))
    trace.check_trace(Path("t.json"))


# ---- plots


@pytest.mark.parametrize("kind", PLOTS)
def test_plots(kind: str) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    png = plot_bytes(kind, Path("p.png"), record("simplemlp"))
    assert png.startswith(b"\x89PNG") and len(png) > 4000
    svg = plot_bytes(kind, Path("p.svg"), record("simplemlp"))
    assert svg == plot_bytes(kind, Path("p.svg"), record("simplemlp")) and b"<svg" in svg


def test_refused_plots() -> None:
    with pytest.raises(UserError, match="there is no plot 'pie'"):
        check_plot("pie", Path("p.png"))
    with pytest.raises(UserError, match="cannot be written"):
        check_plot("loss", Path("p.bmp"))
    assert plots.FORMATS[0] == ".png"


# ---- records


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is not the folder of a run"),
        (b"{", "cannot be read"),
        (b"[]", "is not a record"),
        (b'{"format": "other", "version": 1}', "is not a record"),
        (b'{"format": "tilegrad-record", "version": 99, "tilegrad": "9.9"}', "was written by a later tilegrad"),
    ],
)
def test_refused_records(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / FILE).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_record(tmp_path)
    assert VERSION == 1


def test_a_record_reads_back(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(record_bytes(record("simplemlp")))
    assert read_record(tmp_path) == record("simplemlp")
