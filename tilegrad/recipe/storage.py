"""A storage that saves go to, as a firmware's flash is described: its size, its sectors and its pages."""

from __future__ import annotations

from dataclasses import dataclass

from tilegrad.errors import UserError
from tilegrad.sizes import parse_size

SECTOR_BYTES, PAGE_BYTES = 4096, 256
"""Of most flashes; of a storage in a file, too (tg_storage_file.h)."""
FORM = "BYTES[:SECTOR[:PAGE]]"


@dataclass(frozen=True)
class Storage:
    """Two slots of half the bytes. An erase clears a sector, a program writes a page."""

    size_bytes: int
    sector_bytes: int = SECTOR_BYTES
    page_bytes: int = PAGE_BYTES

    def __post_init__(self) -> None:
        if self.page_bytes < 1 or self.sector_bytes < 1 or self.sector_bytes % self.page_bytes:
            raise UserError(
                "the storage cannot be used",
                stage="options",
                expected="sectors that are whole pages",
                got=f"sectors of {self.sector_bytes} bytes, pages of {self.page_bytes}",
            )
        if self.size_bytes < 1 or self.size_bytes % (2 * self.sector_bytes):
            raise UserError(
                "the storage cannot be used",
                stage="options",
                expected=f"an even number of sectors of {self.sector_bytes} bytes",
                got=f"{self.size_bytes} bytes",
            )

    @staticmethod
    def parse(text: str) -> Storage:
        """`64K`, `64K:4K` or `64K:4K:256`."""
        parts = text.split(":")
        if not 1 <= len(parts) <= 3:
            raise UserError("the storage is not described", stage="options", expected=FORM, got=text)
        names = ("the size of the storage", "the size of a sector", "the size of a page")
        return Storage(*(parse_size(name, part, "options") for name, part in zip(names, parts, strict=False)))
