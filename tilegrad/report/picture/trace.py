"""A trace for Perfetto and Chrome: a track for the cores and each DMA engine, tiles as slices, bytes held as counters.

`.json` is Chrome's format, which needs nothing. Any other ending is Perfetto's own, written with its protobufs (the
package `perfetto`). Time is in cycles: a microsecond on the screen is a thousand of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilegrad.errors import DeviceError, UserError
from tilegrad.report import json

NANOSECONDS_PER_CYCLE = 1


@dataclass(frozen=True, slots=True)
class TraceSlice:
    entry: str
    track: str
    start: int
    stop: int
    name: str
    category: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Sample:
    entry: str
    level: str
    at: int
    size_bytes: int


def trace_slices(mode: Mapping[str, Any]) -> Iterator[TraceSlice]:
    """Slices of a track follow each other: whole cycles, and none reaches into the next."""
    for entry, own in mode["timeline"].items():
        order = sorted(range(len(own["start"])), key=lambda i: (own["track"][i], own["start"][i], own["end"][i]))
        for i, following in zip(order, [*order[1:], None], strict=True):
            start, stop = round(own["start"][i]), round(own["end"][i])
            if following is not None and own["track"][following] == own["track"][i]:
                stop = min(stop, round(own["start"][following]))
            nest = own["nest"][i]
            arguments: dict[str, Any] = {} if nest < 0 else {"node": own["nests"][nest], "nest": nest}
            if own["tile"][i] >= 0:
                arguments["tile"] = own["tile"][i]
            if own["bytes"][i]:
                arguments["bytes"] = own["bytes"][i]
            kind = own["kinds"][own["kind"][i]]
            name = own["names"][own["name"][i]]
            yield TraceSlice(entry, own["tracks"][own["track"][i]], start, max(start, stop), name, kind, arguments)
        whole = {"cycles": round(own["cycles"]), "cycles_are": mode.get("estimates_are", "estimated")}
        yield TraceSlice(entry, "entry", 0, round(own["cycles"]), entry, "entry", whole)


def trace_samples(mode: Mapping[str, Any]) -> Iterator[Sample]:
    for entry, own in mode["memory"].items():
        if own["unit"] == "cycles" and entry in mode["timeline"]:
            for level, one in own["levels"].items():
                for at, size_bytes in one["live"]:
                    yield Sample(entry, level, round(at), size_bytes)


def check_trace(path: Path) -> None:
    """Refuses early what cannot be written."""
    if path.suffix != ".json":
        _perfetto()


def trace_bytes(path: Path, record: Mapping[str, Any]) -> bytes:
    mode = record["modes"][-1]
    if not mode["timeline"]:
        raise UserError(
            "there is nothing to trace: the target has one flat memory and no clock",
            stage="trace",
            hint="choose a simulated cluster, such as --device sim:siracusa",
        )
    return _chrome(mode) if path.suffix == ".json" else _protobuf(mode)


def _chrome(mode: Mapping[str, Any]) -> bytes:
    entries = {entry: number + 1 for number, entry in enumerate(mode["timeline"])}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": entry}} for entry, pid in entries.items()
    ]
    tracks: dict[tuple[str, str], int] = {}
    for one in trace_slices(mode):
        key = (one.entry, one.track)
        if key not in tracks:
            tracks[key] = len(tracks) + 1
            where = {"pid": entries[one.entry], "tid": tracks[key]}
            events.append({"ph": "M", "name": "thread_name", **where, "args": {"name": one.track}})
        events.append(
            {
                "ph": "X",
                "pid": entries[one.entry],
                "tid": tracks[key],
                "ts": one.start / 1000,
                "dur": (one.stop - one.start) / 1000,
                "name": one.name,
                "cat": one.category,
                "args": dict(one.arguments),
            }
        )
    events += [
        {
            "ph": "C",
            "pid": entries[sample.entry],
            "ts": sample.at / 1000,
            "name": f"{sample.level} bytes",
            "args": {"bytes": sample.size_bytes},
        }
        for sample in trace_samples(mode)
    ]
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": events}, indent=None).encode()


def _perfetto() -> Any:
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2
    except ImportError as error:
        raise DeviceError(
            "Perfetto's own format needs the package 'perfetto'",
            stage="trace",
            hint="pip install 'tilegrad[trace]', or name a file that ends in .json",
        ) from error
    return perfetto_trace_pb2


def _protobuf(mode: Mapping[str, Any]) -> bytes:
    schema = _perfetto()
    trace = schema.Trace()
    tracks: dict[tuple[str, ...], int] = {}

    def packet(at: int | None = None) -> Any:
        one = trace.packet.add()
        one.trusted_packet_sequence_id = 1
        if at is not None:
            one.timestamp = at * NANOSECONDS_PER_CYCLE
        return one

    def track(*key: str, counter: bool = False) -> int:
        if key not in tracks:
            parent = track(key[0]) if len(key) > 1 else 0
            tracks[key] = len(tracks) + 1
            described = packet().track_descriptor
            described.uuid, described.name = tracks[key], key[-1]
            if parent:
                described.parent_uuid = parent
            if counter:
                described.counter.unit = schema.CounterDescriptor.UNIT_SIZE_BYTES
        return tracks[key]

    edges: list[tuple[int, int, int, TraceSlice]] = []
    for number, one in enumerate(trace_slices(mode)):
        edges += [(one.start, 2, number, one), (one.stop, 1 if one.stop > one.start else 3, number, one)]
    for at, phase, _, one in sorted(edges, key=lambda edge: (edge[0], edge[1], edge[2])):
        uuid = track(one.entry, one.track)
        event = packet(at).track_event
        event.track_uuid = uuid
        if phase != 2:
            event.type = schema.TrackEvent.TYPE_SLICE_END
            continue
        event.type = schema.TrackEvent.TYPE_SLICE_BEGIN
        event.name = one.name
        event.categories.append(one.category)
        for key, value in one.arguments.items():
            note = event.debug_annotations.add()
            note.name = key
            if isinstance(value, int):
                note.int_value = value
            else:
                note.string_value = str(value)
    for sample in trace_samples(mode):
        uuid = track(sample.entry, f"{sample.level} bytes", counter=True)
        event = packet(sample.at).track_event
        event.track_uuid, event.type = uuid, schema.TrackEvent.TYPE_COUNTER
        event.counter_value = sample.size_bytes
    return bytes(trace.SerializeToString())
