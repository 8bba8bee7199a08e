"""Names of tensors in generated C: byte offsets into the state and into the arena, as enumerators."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.codegen.c import LINE_WIDTH, Comment, Item, fill, identifier, with_commas
from tilegrad.ir.plan import FLASH_REGION, Address, Plan

LONGEST_NAME = 28
PREFIXES = {"state": "S_", "arena": "A_", FLASH_REGION: "F_"}


class TensorNames:
    """Given as code asks for them. A tensor that is at several places has a name for each.

    What is written to where a tensor of the state is has that one's name.
    """

    def __init__(self, plan: Plan) -> None:
        self._kept = {address: name for name, address in plan.state_addresses.items()}
        self._names: dict[tuple[str, Address], str] = {}
        self._taken: set[str] = set()

    def of(self, value: str, address: Address) -> str:
        """Without the prefix."""
        key = (self._kept.get(address, value), address)
        if key not in self._names:
            base = name = identifier(key[0], LONGEST_NAME)
            count = 1
            while PREFIXES[address.region] + name in self._taken:
                count += 1
                name = f"{base}_{count}"
            self._taken.add(PREFIXES[address.region] + name)
            self._names[key] = name
        return self._names[key]

    def items(self, width: int = LINE_WIDTH) -> list[Item]:
        """In the order in which code asked for them, the state's first."""
        members = [
            f"{prefix}{name} = {address.offset}"
            for region, prefix in PREFIXES.items()
            for (_, address), name in self._names.items()
            if address.region == region
        ]
        lines = packed_enumerators(members, width)
        if width > LINE_WIDTH:
            lines = [Comment("clang-format off"), *lines, Comment("clang-format on")]
        regions = {address.region for _, address in self._names}
        flash = ", those in flash (F_)" if FLASH_REGION in regions else ""
        title = f"Where tensors are, in bytes: those that are kept (S_){flash}, and those that are not (A_)."
        return [Comment(title), *lines]


def packed_enumerators(members: Sequence[str], width: int = LINE_WIDTH) -> list[Item]:
    """Several to a line, each line a declaration of its own."""
    lines = fill(with_commas(members), width - len("enum {  }"))
    return [f"enum {{ {line.removesuffix(',')} }};" for line in lines if members]
