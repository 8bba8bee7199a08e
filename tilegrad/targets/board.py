"""A board as data: its address space, and the compiler that makes its images."""

from __future__ import annotations

from dataclasses import dataclass

from tilegrad.errors import DoesNotFit

KIB = 1024
MIB = 1024 * KIB
CODE_BYTES = 192 * KIB  # kept free for kernels, tables and harness: no model of the zoo takes half of it


@dataclass(frozen=True)
class Bank:
    """A stretch of the address space that one memory answers."""

    name: str
    start: int
    size_bytes: int


@dataclass(frozen=True)
class Placement:
    """The bank of each part of a program: stacks and data, the state, the arena."""

    data: Bank
    state: Bank
    arena: Bank


@dataclass(frozen=True)
class Board:
    """`banks` are RAM, the one that holds stacks and data first. `start` is the file of runtime/bare that begins.

    `tools` are what makes an image, the compiler first, each with Debian's package. `link_flags` go behind the objects;
    `linker` is the command that links, where that is not the compiler with its flags.
    """

    code: Bank
    banks: tuple[Bank, ...]
    stack_bytes: int
    start: str
    tools: tuple[tuple[str, str], ...]
    flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    linker: tuple[str, ...] = ()

    @property
    def compiler(self) -> str:
        return self.tools[0][0]

    @property
    def flash_bytes(self) -> int:
        """For constants, in the bank of the code beside the code."""
        return self.code.size_bytes - CODE_BYTES

    @property
    def ram_bytes(self) -> int:
        return sum(bank.size_bytes for bank in self.banks)

    def place(self, data_bytes: int, state_bytes: int, arena_bytes: int) -> Placement:
        """Each part whole in one bank: the arena, which is used most, as early as it can be, then the state."""
        free = {bank: bank.size_bytes for bank in self.banks}
        free[self.banks[0]] -= data_bytes
        for order in ((arena_bytes, state_bytes), (state_bytes, arena_bytes)):
            left = dict(free)
            taken: list[Bank] = []
            for size in order:
                bank = next((bank for bank in self.banks if left[bank] >= size), None)
                if bank is not None:
                    left[bank] -= size
                    taken.append(bank)
            if len(taken) == len(order) and free[self.banks[0]] >= 0:
                arena, state = taken if order[0] == arena_bytes else reversed(taken)
                return Placement(self.banks[0], state, arena)
        raise DoesNotFit(
            "the program does not fit into the board's banks of RAM",
            stage="memory",
            expected=", ".join(f"{max(size, 0)} bytes of {bank.name}" for bank, size in free.items())
            + f" beside {data_bytes} of stacks, buffers and data",
            got=f"{state_bytes} bytes of state and {arena_bytes} of activations, each in one piece",
            hint="train fewer parameters (--train last:K), a smaller batch, or a stateless optimizer (sgd)",
        )
