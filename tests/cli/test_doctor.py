"""`tilegrad doctor` on a bare machine, on this one, and on machines whose tools are broken."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import CommandLine, finish, start
from tilegrad.devices import registry
from tilegrad.report.doctor import TOOLS

PROGRAMS = [tool for tool in TOOLS if tool.candidates]
GET = re.compile(r"(Debian: apt-get install [\w. -]+|PyPI: pip install [\w'\[\]-]+|no Debian or PyPI package: .+)")


def by_name(rows: list[dict[str, Any]], key: str) -> dict[str, dict[str, Any]]:
    return {row[key]: row for row in rows}


def test_every_tool_names_its_package() -> None:
    for tool in TOOLS:
        assert GET.fullmatch(tool.get), tool.name
        assert bool(tool.candidates) is (tool.package is None) and tool.unlocks


def test_a_bare_machine(tmp_path: Path) -> None:
    """No program at all: every one is missing, and every device says what it lacks and which package has it."""
    answer = finish(start("doctor", "--json", "-", environment={"PATH": str(tmp_path), "CC": ""}))
    assert answer.status == 0
    tools = by_name(answer.json["tools"], "tool")
    for tool in PROGRAMS:
        assert not tools[tool.name]["found"] and tools[tool.name]["get"] == tool.get
    devices = by_name(answer.json["devices"], "name")
    assert devices["null"]["usable"], "it needs nothing"
    lacking = {name: row["reason"] for name, row in devices.items() if name != "null"}
    assert all(reason for reason in lacking.values())
    for name in ("host", "sim:siracusa", "qemu:riscv32", "qemu:mps2-an500"):
        assert "Debian: apt-get install" in lacking[name], name
    answer = finish(start("doctor", environment={"PATH": str(tmp_path), "CC": ""}))
    assert answer.status == 0 and f"{sum(not row['found'] for row in tools.values())} missing" in answer.out


def test_this_machine(tilegrad: CommandLine) -> None:
    """What it finds is what is there, and each device that it calls usable can be opened."""
    document = tilegrad("doctor", "--json", "-").json
    tools = by_name(document["tools"], "tool")
    for tool in TOOLS:
        if tool.package is not None:
            assert tools[tool.name]["found"] is (importlib.util.find_spec(tool.package) is not None)
        elif tool.variable is None:
            assert tools[tool.name]["found"] is any(map(shutil.which, tool.candidates))
        assert bool(tools[tool.name]["version"]) is tools[tool.name]["found"], tool.name
    for name, row in by_name(document["devices"], "name").items():
        assert row["usable"] is (registry.device_kind(name).missing(name) is None)
        if row["usable"]:
            registry.open_device(name).close()
    assert document["cache_limit"] > 0


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_a_compiler_that_compiles_nothing_is_none(
    tmp_path: Path, tilegrad: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As gcc is without the C library's headers."""
    program(tmp_path, "cc", "echo 'try.c:1:10: fatal error: stdio.h: No such file or directory' >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    row = by_name(tilegrad("doctor", "--json", "-").json["tools"], "tool")["C compiler"]
    assert not row["found"] and "stdio.h: No such file" in row["version"] and "libc6-dev" in row["get"]
    assert "stdio.h" in tilegrad("doctor").out


def test_a_tool_that_does_not_answer(tmp_path: Path, tilegrad: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilegrad.report.doctor.VERSION_TIMEOUT_SECONDS", 0.2)
    program(tmp_path, "make", "exec sleep 60")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    row = by_name(tilegrad("doctor", "--json", "-").json["tools"], "tool")["make"]
    assert row["found"] and row["version"] == "does not answer --version" and row["where"] == str(tmp_path / "make")


def test_a_compiler_named_by_the_environment(
    tmp_path: Path, tilegrad: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "nowhere"))
    row = by_name(tilegrad("doctor", "--json", "-").json["tools"], "tool")["C compiler"]
    assert not row["found"]
