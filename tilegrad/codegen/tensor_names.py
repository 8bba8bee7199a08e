"""Names of tensors in generated C: byte offsets into the state and into the arena, as enumerators."""

from __future__ import annotations

from tilegrad.codegen.c import Comment, Item, Line, identifier
from tilegrad.ir.plan import Address

PREFIXES = {"state": "S_", "arena": "A_"}
LINE_WIDTH = 120


class TensorNames:
    """Given as code asks for them. A tensor that is at several places has a name for each."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, Address], str] = {}
        self._taken: set[str] = set()

    def of(self, value: str, address: Address) -> str:
        """Without the prefix."""
        key = (value, address)
        if key not in self._names:
            base = name = identifier(value)
            count = 1
            while PREFIXES[address.region] + name in self._taken:
                count += 1
                name = f"{base}_{count}"
            self._taken.add(PREFIXES[address.region] + name)
            self._names[key] = name
        return self._names[key]

    def items(self) -> list[Item]:
        """In the order in which code asked for them, the state's first."""
        result: list[Item] = [
            Comment("Where tensors are, in bytes: those that are kept (S_), and those that are not (A_).")
        ]
        for region, prefix in PREFIXES.items():
            members = [
                f"{prefix}{name} = {address.offset}"
                for (_, address), name in self._names.items()
                if address.region == region
            ]
            result += packed_enumerators(members)
        return result


def packed_enumerators(members: list[str]) -> list[Item]:
    """Several to a line, each line a declaration of its own."""
    lines: list[str] = []
    for member in members:
        longer = f"{lines[-1]}, {member}" if lines else ""
        if lines and len(f"enum {{ {longer} }};") <= LINE_WIDTH:
            lines[-1] = longer
        else:
            lines.append(member)
    return [Line(f"enum {{ {line} }};") for line in lines]
