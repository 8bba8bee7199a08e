"""What pictures are drawn of: a compiled program, or the part of it that has addresses and events."""

from __future__ import annotations

from typing import Protocol

from tilegrad.ir.listing import Listing
from tilegrad.ir.plan import Plan


class Listed(Protocol):
    @property
    def plan(self) -> Plan: ...

    @property
    def listing(self) -> Listing: ...
