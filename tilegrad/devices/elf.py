"""What is in a linked image: symbols and sections, read from the file itself (32-bit, little endian)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tilegrad.errors import DeviceError

_HEADER = struct.Struct("<16sHHIIIIIHHHHHH")
_SECTION = struct.Struct("<10I")
_SYMBOL = struct.Struct("<IIIBBH")
_SYMBOL_TABLE, _FUNCTION = 2, 2


@dataclass(frozen=True)
class Symbol:
    address: int
    size_bytes: int


@dataclass(frozen=True)
class Section:
    address: int
    size_bytes: int


def _string(table: bytes, at: int) -> str:
    return table[at : table.index(0, at)].decode("ascii", errors="replace")


class ElfFile:
    def __init__(self, path: Path) -> None:
        self._data = path.read_bytes()
        if len(self._data) < _HEADER.size or self._data[:6] != b"\x7fELF\x01\x01":
            raise DeviceError(f"'{path.name}' is no image", stage="build", expected="a 32-bit little-endian ELF file")
        header = _HEADER.unpack_from(self._data)
        self.machine, offset, count, names = header[2], header[6], header[12], header[13]
        self._sections = [_SECTION.unpack_from(self._data, offset + i * _SECTION.size) for i in range(count)]
        text = self._content(names)
        self.sections = {_string(text, s[0]): Section(s[3], s[5]) for s in self._sections}

    def _content(self, index: int) -> bytes:
        section = self._sections[index]
        return self._data[section[4] : section[4] + section[5]]

    def symbols(self) -> dict[str, Symbol]:
        """Global and local; of equal names the last one stands. Thumb functions lose their mark in bit 0."""
        return dict(self._symbols())

    def _symbols(self) -> Iterator[tuple[str, Symbol]]:
        for index, section in enumerate(self._sections):
            if section[1] != _SYMBOL_TABLE:
                continue
            names = self._content(section[6])
            for name, value, size, info, _, where in _SYMBOL.iter_unpack(self._content(index)):
                if where != 0:
                    address = value & ~1 if info & 15 == _FUNCTION else value
                    yield _string(names, name), Symbol(address, size)
