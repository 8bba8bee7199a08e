"""Which devices a command names: `host`, `sim:siracusa*4`, `opencl:0,opencl:1`, `host,qemu:riscv32*2`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilegrad.devices.registry import device_kind
from tilegrad.errors import UserError

MOST_DEVICES = 256
FORM = "D[*N][,D…], such as host*2 or host,sim:siracusa"


@dataclass(frozen=True)
class Specification:
    """`names` has a name for each device, in order; the first one makes the updates. `text` is as it was written."""

    text: str
    names: tuple[str, ...]
    is_several: bool  # written as several, be it `host*1`

    @property
    def first(self) -> str:
        return self.names[0]

    @property
    def kinds(self) -> tuple[str, ...]:
        """Each name once, in order."""
        return tuple(dict.fromkeys(self.names))


_DEVICES = re.compile(r",(?!\s*[a-z]+=)")  # a comma before an option is of the device that it belongs to


def is_several(text: str) -> bool:
    """Whether a text names more than a device: nothing is looked up."""
    return "*" in text or len(_DEVICES.split(text)) > 1


def parse_devices(text: str) -> Specification:
    """The devices that a text names. Each must exist; whether it can be used here is found out when it is opened."""
    names: list[str] = []
    for part in _DEVICES.split(text):
        name, star, count = (word.strip() for word in part.partition("*"))
        if not name or (star and not count):
            raise _refused(text, f"'{part.strip()}'" if part.strip() else "a comma with nothing beside it")
        if star and not (count.isascii() and count.isdigit() and 1 <= int(count[:9]) <= MOST_DEVICES):
            raise _refused(text, f"'{name}' {count} times", f"a number from 1 to {MOST_DEVICES} behind *")
        device_kind(name)
        names += [name] * (int(count) if star else 1)
    if len(names) > MOST_DEVICES:
        raise _refused(text, f"{len(names)} devices", f"at most {MOST_DEVICES} devices")
    found = Specification(text, tuple(names), is_several(text))
    if found.is_several:
        for name in found.kinds:
            check_takes_part(name, names.count(name))
    return found


def _refused(text: str, got: str, expected: str = FORM) -> UserError:
    return UserError(f"the devices '{text}' cannot be used", stage="device", expected=expected, got=got)


def check_takes_part(name: str, count: int = 1) -> None:
    able = device_kind(name).capabilities
    if not (able.runs and able.is_interactive):
        raise UserError(
            f"device '{name}' cannot compute a share of an update: it takes nothing and gives nothing while it runs",
            stage="device",
            expected="devices that answer while they run",
            got=name,
            hint="such as host, sim:siracusa, qemu:riscv32 or opencl:0",
        )
    if able.is_exclusive and count > 1:
        raise UserError(
            f"device '{name}' is one piece of hardware: it cannot be there {count} times", stage="device", got=name
        )
