"""Where what a program takes and makes lives between calls: here, or on the device that runs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Final, Literal

from tilegrad.errors import UserError
from tilegrad.ir.program import Program, Role
from tilegrad.ir.types import TensorType

Place = Literal["host", "device"]
HOST: Final = "host"
DEVICE: Final = "device"
_MOST_NAMES = 12


@dataclass(frozen=True)
class Placed:
    """One tensor and its place. A gradient is called by its own name or by its parameter's (`owner`)."""

    name: str
    what: str
    type: TensorType
    place: Place
    owner: str | None = None


@dataclass(frozen=True)
class Residency:
    """Parameters, gradients and optimizer state are placed once, when a program is loaded, and then stay.

    What moves beside them is chosen here. `inputs` on the host are sent with every call; on the device they are
    placed once and used by every call after that. `outputs` on the host come back with every call; on the device they
    stay until they are asked for. `gradients` on the host are copied there after every step; on the device they are
    read when they are asked for. `tensors` are single ones of them, by name: `Residency({"x": "device"})`.
    """

    tensors: Mapping[str, Place] = field(default_factory=dict)
    inputs: Place = field(default=HOST, kw_only=True)
    outputs: Place = field(default=HOST, kw_only=True)
    gradients: Place = field(default=DEVICE, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.tensors, Mapping):
            raise UserError(
                "tensors are placed by name",
                stage="load",
                expected="such as Residency({'x': 'device'}), or Residency(inputs='device')",
                got=repr(self.tensors),
            )
        object.__setattr__(self, "tensors", dict(self.tensors))
        places = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "tensors"}
        for name, place in (*places.items(), *((f"'{name}'", place) for name, place in self.tensors.items())):
            if place not in (HOST, DEVICE):
                raise UserError(
                    f"{name} cannot be placed there", stage="load", expected=f"{HOST} or {DEVICE}", got=str(place)
                )

    @staticmethod
    def parse(text: str | None) -> Residency:
        """As on the command line: `x=device,gradients=host`."""
        kinds: dict[str, Place] = {}
        tensors: dict[str, Place] = {}
        for part in (text or "").split(",") if text is not None else ():
            name, equals, place = (word.strip() for word in part.rpartition("="))
            if not (name and equals):
                raise UserError(
                    "--residency cannot be read",
                    stage="options",
                    expected="NAME=PLACE,… such as gradients=host or x=device",
                    got=text,
                )
            (kinds if name in ("inputs", "outputs", "gradients") else tensors)[name] = place  # type: ignore[assignment]
        return Residency(tensors, **kinds)

    def placed(self, program: Program) -> Iterator[Placed]:
        """Every tensor that has a choice: inputs, outputs, and gradients, once each."""
        seen: set[str] = set()
        for what, place in (("input", self.inputs), ("output", self.outputs)):
            for graph in program.entries.values():
                for name in graph.inputs if what == "input" else graph.outputs:
                    if name not in seen:
                        seen.add(name)
                        yield Placed(name, what, graph.types[name], self.tensors.get(name, place))
        kept = {tensor.owner: tensor.name for tensor in program.with_role(Role.GRADIENT)}
        for tensor in program.trainable:
            name = kept.get(tensor.name, tensor.name)
            place = self.tensors.get(name, self.tensors.get(tensor.name, self.gradients))
            yield Placed(name, "gradient", tensor.type, place, tensor.name)

    def checked(self, program: Program) -> dict[str, Place]:
        """The place of each tensor by name. A name that is none of them is refused, with those that are."""
        rows = list(self.placed(program))
        known = dict.fromkeys(name for row in rows for name in (row.name, row.owner) if name is not None)
        for name in self.tensors:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                listed = [f"'{each.owner or each.name}'" for each in rows]
                more = f" and {len(listed) - _MOST_NAMES} more" if len(listed) > _MOST_NAMES else ""
                raise UserError(
                    f"'{name}' is no input, output or gradient of '{program.name}'",
                    stage="load",
                    expected=", ".join(listed[:_MOST_NAMES]) + more,
                    got=name,
                    hint=f"did you mean '{near[0]}'?" if near else "`--dump-after plan` lists all of them",
                )
        return {row.name: row.place for row in rows}

    def lines(self, program: Program) -> Iterator[str]:
        """As text, for `--dump-after plan`."""
        self.checked(program)
        for row in self.placed(program):
            owner = f" of %{row.owner}" if row.owner not in (None, row.name) else ""
            yield f"  {row.what} %{row.name}: {row.type.size_bytes} bytes{owner}, {_MEANING[row.what][row.place]}"


_MEANING: Mapping[str, Mapping[str, str]] = {
    "input": {HOST: "host: sent with every call", DEVICE: "device: placed once"},
    "output": {HOST: "host: comes back with every call", DEVICE: "device: stays until it is asked for"},
    "gradient": {HOST: "host: copied after every step", DEVICE: "device: read when it is asked for"},
}
