"""Who computed which part of the updates, and what was moved for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilegrad.report.format import bytes_text, count_text
from tilegrad.report.output import table
from tilegrad.report.table import FittingTable


def shares_table(facts: Mapping[str, Any]) -> FittingTable:
    """A row for each device; bytes are means over the updates."""
    numbers = ("shares", "placed once", "there, an update", "back, an update")
    made = table("device", *numbers, right=numbers, spare=("placed once",))
    for number, row in enumerate(facts["devices"]):
        moved = (row["to_device_bytes_per_update"], row["from_device_bytes_per_update"])
        made.add_row(
            f"{row['device']}" + (" (makes updates)" if number == 0 else ""),
            count_text(row["shares"]),
            bytes_text(row["loaded_bytes"]),
            *("-" if each is None else bytes_text(round(each)) for each in moved),
        )
    return made
