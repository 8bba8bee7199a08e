"""How an MPPA is used: what follows its name, `mppa:iss:clusters=3,arch=kv3-2`, checked field by field.

Options of the vendor's tools are those of its public scripts and Makefiles (docs/mppa.md); none was tried here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tilegrad.errors import UserError
from tilegrad.targets import base as targets

FAMILY = "mppa"
PLATFORMS = ("iss", "qemu", "hw")
ARCHITECTURES = ("kv3-1", "kv3-2")
FIRMWARES = ("ocl_fw.elf", "ocl_fw_l1.elf", "ocl_fw_trace.elf", "ocl_fw_autotrace.elf")
SWITCH = {"on": True, "off": False}
CLUSTERS = targets.get(FAMILY).clusters
_TRACE = "MPPA_TRACE_ENABLE_META=1 MPPA_TRACE_USE_SYSCALL=1"


@dataclass(frozen=True)
class MppaConfiguration:
    """`arch` is what the compiler and the simulators are told; `clusters` are those that a program is linked for;
    `firmware` is what the vendor's tools are told to load beside it, if anything; in `workdir` programs are built and
    stay, in a temporary folder if it is None; `trace` asks the card for its own traces."""

    platform: str
    arch: str = "kv3-1"
    clusters: int = CLUSTERS
    firmware: str | None = None
    workdir: Path | None = None
    trace: bool = False

    def __post_init__(self) -> None:
        _one_of("platform", self.platform, PLATFORMS)
        _one_of("arch", self.arch, ARCHITECTURES)
        if type(self.clusters) is not int or not 1 <= self.clusters <= CLUSTERS:
            raise _refused("clusters", self.clusters, f"a number from 1 to {CLUSTERS}")
        if self.firmware is not None:
            _one_of("firmware", self.firmware, FIRMWARES)
        if self.workdir is not None:
            _check_folder(self.workdir)
        if not isinstance(self.trace, bool):
            raise _refused("trace", self.trace, "True or False")
        if self.trace and self.platform != "hw":
            raise _refused("trace", "on", f"off on {self.platform}: only the card (hw) writes traces")

    @property
    def name(self) -> str:
        """As it is written: the platform, and what differs from what is taken without being said."""
        given = {
            "arch": self.arch if self.arch != "kv3-1" else None,
            "clusters": self.clusters if self.clusters != CLUSTERS else None,
            "firmware": self.firmware,
            "workdir": self.workdir,
            "trace": "on" if self.trace else None,
        }
        options = ",".join(f"{field}={value}" for field, value in given.items() if value is not None)
        return f"{FAMILY}:{self.platform}" + (f":{options}" if options else "")

    @property
    def compile_flags(self) -> tuple[str, ...]:
        return (f"-march={self.arch}",)

    @property
    def link_flags(self) -> tuple[str, ...]:
        """For ClusterOS: data in DDR, so many clusters from the first on, all cores of each, one thread on a core."""
        numbers = {
            "MPPA_COS_MASTER_CC": 0,
            "MPPA_COS_NB_CC": self.clusters,
            "MPPA_COS_NB_CORES_LOG2": targets.get(FAMILY).cores.bit_length() - 1,
            "MPPA_COS_THREAD_PER_CORE_LOG2": 0,
        }
        symbols = (f"-Wl,--defsym={symbol}={value}" for symbol, value in numbers.items())
        return (*self.compile_flags, "-Tmppadcos_ddr.ld", *symbols)

    @property
    def environment(self) -> dict[str, str]:
        """What the vendor's tools are told by variables."""
        told = {} if self.firmware is None else {"OMP_MPPA_FIRMWARE_NAME": self.firmware}
        return told | ({"MPPA_ENVP": _TRACE} if self.trace else {})


def parse(name: str) -> MppaConfiguration:
    """`mppa:PLATFORM`, and behind it, if anything, `:FIELD=VALUE,…`."""
    _, _, rest = name.partition(":")
    platform, colon, text = rest.partition(":")
    return MppaConfiguration(platform, **_options(name, text if colon else None))


def _options(name: str, text: str | None) -> dict[str, Any]:
    known = [field.name for field in fields(MppaConfiguration)[1:]]
    found: dict[str, Any] = {}
    for part in [] if text is None else text.split(","):
        field, equals, value = (word.strip() for word in part.partition("="))
        if not (equals and value) or field in found:
            what = f"'{field}' once" if field in found else "FIELD=VALUE, with commas between them"
            raise UserError(f"'{part}' of device '{name}' cannot be used", stage="device", expected=what, got=part)
        if field not in known:
            near = get_close_matches(field, known, n=1)
            raise UserError(
                f"an MPPA has no '{field}'",
                stage="device",
                expected=", ".join(known),
                got=part.strip(),
                hint=f"did you mean '{near[0]}'?" if near else "docs/mppa.md explains each",
            )
        found[field] = _value(field, value)
    return found


def _value(field: str, text: str) -> object:
    if field == "clusters":
        if not (text.isascii() and text.isdigit()):
            raise _refused(field, text, f"a number from 1 to {CLUSTERS}")
        return int(text[:9])
    if field == "trace":
        _one_of(field, text, tuple(SWITCH))
        return SWITCH[text]
    return Path(text) if field == "workdir" else text


def _one_of(field: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise _refused(field, value, " or ".join(known))


def _check_folder(folder: Path) -> None:
    """A folder that programs can be built in: there, or in one that is."""
    if not isinstance(folder, Path):
        raise _refused("workdir", folder, "a path")
    there = folder if folder.exists() else folder.absolute().parent
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise _refused("workdir", folder, "a folder that can be written to, or made in one that is there")


def _refused(field: str, value: object, expected: str) -> UserError:
    return UserError(
        f"'{field}' of an MPPA cannot be '{value}'",
        stage="device",
        expected=expected,
        got=str(value),
        hint="docs/mppa.md explains each field",
    )

