"""What `--device` may name."""

from __future__ import annotations

import pytest

from tilegrad.errors import UserError
from tilegrad.parallel.specification import parse_devices


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("host", ("host",)),
        ("host*1", ("host",)),
        ("host*3", ("host",) * 3),
        ("sim:siracusa*2,host", ("sim:siracusa", "sim:siracusa", "host")),
        (" host , qemu:riscv32 * 2 ", ("host", "qemu:riscv32", "qemu:riscv32")),
    ],
)
def test_names_come_in_order(text: str, names: tuple[str, ...]) -> None:
    assert parse_devices(text).names == names


def test_one_device_written_as_several_is_several() -> None:
    assert parse_devices("host*1").is_several and not parse_devices("host").is_several


@pytest.mark.parametrize(
    "text", ["host*", "host*0", "host*-1", "host*two", "host*1.5", "host**2", "host*9999", "host,", ",", "*2", "host*٣"]
)
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="cannot be used"):
        parse_devices(text)


def test_an_unknown_device_is_named() -> None:
    with pytest.raises(UserError, match="no device 'hots'"):
        parse_devices("host,hots*2")


@pytest.mark.parametrize("text", ["null*2", "host,null", "host,gvsoc:siracusa"])
def test_devices_that_do_not_answer_take_no_part(text: str) -> None:
    with pytest.raises(UserError, match="cannot compute a share"):
        parse_devices(text)
