"""Kernels that go on with tiles of others, as C: how the runtime calls them, and the arguments of all as one struct."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from itertools import groupby

from tilegrad.codegen import c
from tilegrad.ops.kernels import ArgumentStruct, KernelSignature


@dataclass(frozen=True)
class _Chain:
    """`at` are the addresses of the pointers of `then`, whose arguments are `words` behind the first."""

    signature: KernelSignature
    first: KernelSignature
    then: KernelSignature
    at: tuple[int, ...]
    words: int


@dataclass
class Chains:
    """Those of a program, by name: a kernel and all that goes on behind it, the last of which is its own. `taken` are
    names of kernels."""

    taken: Collection[str] = ()
    made: dict[str, _Chain] = field(default_factory=dict)

    def joined(
        self, first: KernelSignature, then: KernelSignature, number: int, at: tuple[int, ...]
    ) -> KernelSignature:
        """The signature that a table of `first` has where `then` goes on with its tiles, on these addresses."""
        stem = name = f"{first.name}_{then.name}"
        others = 1
        while name in self.taken or (name in self.made and (self.made[name].at, self.made[name].first) != (at, first)):
            others += 1
            name = f"{stem}_{others}"
        if name not in self.made:
            words = len(first.arguments.fields)
            more = tuple((c_type, f"then{number}_{of}") for c_type, of in then.arguments.fields)
            arguments = _struct(f"{name}_args", (*first.arguments.fields, *more))
            signature = replace(first, name=name, arguments=arguments)
            self.made[name] = _Chain(signature, first, then, at, words)
        return self.made[name].signature

    def first_of(self, signature: KernelSignature) -> KernelSignature:
        """The kernel that a chain begins with."""
        found = self.made.get(signature.name)
        return signature if found is None else self.first_of(found.first)

    def calls(self) -> list[str]:
        return [
            f"TG_EPILOGUE_CALL({name}, {one.then.name}, {one.words}, {', '.join(f'at[{i}]' for i in one.at)})"
            for name, one in self.made.items()
        ]

    def numbers(self, first: int) -> list[c.Item]:
        """Of the calls, from the first one's on, and of the chains that tables have."""
        lines: list[c.Item] = []
        for number, (name, one) in enumerate(self.made.items(), first):
            chain = f"K_{name} = {self._then(one)}(K_{one.first.name},"
            lines += c.fill((f"enum {{ E_{name} = {number},", chain, f"E_{name}) }};"), hanging=c.INDENT)
        return lines

    def _then(self, one: _Chain) -> str:
        return "AND_THEN" if one.first.name in self.made else "THEN"

    def types(self) -> list[c.Item]:
        if not self.made:
            return []
        title = c.Comment("Arguments of kernels, and behind them of those that go on with their tiles.")
        return ["", title, *(one.signature.arguments.text for one in self.made.values())]


def _struct(name: str, fields: tuple[tuple[str, str], ...]) -> ArgumentStruct:
    """Fields of one type in a row stand together."""
    lines = ["typedef struct {"]
    for c_type, own in groupby(fields, key=lambda each: each[0]):
        names = [f"{each}," for _, each in own]
        names[-1] = names[-1].removesuffix(",") + ";"
        lines += c.fill(names, c.LINE_WIDTH, f"{c.INDENT}{c_type} ", c.INDENT * 2)
    return ArgumentStruct(name, fields, "\n".join([*lines, f"}} {name};"]))
