"""What never changes stays in flash on a microcontroller: RAM holds what trains, and the bits are the host's."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import numpy as np
import pytest

import tilegrad as tg
from tests.devices.boards import board
from tilegrad.compiled import Compiled
from tilegrad.devices.qemu import MACHINES, QemuDevice
from tilegrad.devices.registry import open_device
from tilegrad.errors import UserError
from tilegrad.ir.plan import Address
from tilegrad.ir.program import Role
from tilegrad.place.validate import PlanError, validate_plan
from tilegrad.targets import base as targets
from tilegrad.targets.base import FLASH, RAM, Target


def compiled_for(target: str | Target, train: str = "last:1", model: str = "simplemlp") -> Compiled:
    return tg.compile(tg.load(model), tg.Recipe(train=train), target)


def test_frozen_weights_take_no_ram() -> None:
    """Issue: 852,288 frozen bytes of mobilenetv1 were counted as RAM, and `last:1` did not fit into 1 MB."""
    plan = compiled_for("mcu", model="mobilenetv1").plan
    frozen = sum(tensor.type.size_bytes for tensor in plan.schedule.program.with_role(Role.FROZEN))
    assert frozen == 852_288 and plan.flash_bytes >= frozen
    assert plan.memory[FLASH].used_bytes == plan.flash_bytes
    assert plan.memory[RAM].used_bytes == plan.state_bytes + plan.arena_bytes <= 260 * 1024


def test_an_update_where_the_gradient_comes_into_being_keeps_none() -> None:
    program = compiled_for("mcu", "all", "mlp").program
    assert program.is_fused and not program.with_role(Role.GRADIENT)
    assert not compiled_for("host", "all", "mlp").program.is_fused


def test_what_does_not_fit_into_flash_is_copied_to_ram() -> None:
    whole = compiled_for("mcu").plan
    tight = compiled_for(targets.get("mcu").with_capacity(FLASH, whole.flash_bytes - 1)).plan
    assert 0 < tight.flash_bytes < whole.flash_bytes
    assert tight.state_bytes + tight.flash_bytes == whole.state_bytes + whole.flash_bytes


@pytest.mark.parametrize("name", [board("qemu:mps2-an500")])
def test_a_board_trains_beside_its_constants_with_the_bits_of_the_host(name: str) -> None:
    x = np.random.default_rng(3).standard_normal((1, 64)).astype(np.float32)
    found = {}
    for device_name, target in ((name, "cortex_m7"), ("host", "host")):
        with open_device(device_name) as device, device.load(compiled_for(target)) as session:
            losses = []
            for label in (1, 3, 5):
                losses.append(float(session.step(x, np.array([label]))))
                session.update()
            frozen = {t.name: session.read(t.name) for t in session.compiled.program.with_role(Role.FROZEN)}
            found[device_name] = losses, session.weights(), session.gradients(), frozen
    ours, host = found[name], found["host"]
    assert ours[0] == host[0]
    for part in (1, 2, 3):
        assert ours[part].keys() == host[part].keys() and ours[part]
        for tensor, array in host[part].items():
            assert ours[part][tensor].tobytes() == array.tobytes(), tensor


@pytest.mark.parametrize("name", [board("qemu:mps2-an500"), board("qemu:mps3-an547")])
def test_the_linked_image_has_what_the_plan_says(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Of RAM to the byte, by the linker's own map; flash holds the constants beside code."""
    with QemuDevice(name) as device:
        compiled = compiled_for(MACHINES[name].target)
        image = device.build(compiled, tmp_path_factory.mktemp("image"))
    command = ["arm-none-eabi-size", "-A", str(image.path)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listed.splitlines()]
    sizes = {row[0]: int(row[1]) for row in rows if len(row) == 3 and row[1].isdigit()}
    plan = compiled.plan
    assert sizes[".state"] == plan.state_bytes and sizes[".arena"] == plan.arena_bytes
    linked = sum(sizes.get(part, 0) for part in (".data", ".bss", ".stacks", ".state", ".arena"))
    assert linked == plan.memory[RAM].used_bytes
    assert sizes[".text"] > plan.flash_bytes


@pytest.mark.parametrize("name", [board("qemu:mps2-an500")])
def test_a_constant_of_the_program_cannot_be_written(name: str) -> None:
    with open_device(name) as device, device.load(compiled_for("cortex_m7")) as session:
        frozen = session.compiled.program.with_role(Role.FROZEN)[0]
        with pytest.raises(UserError, match="constant of the program"):
            session.write(frozen.name, session.read(frozen.name))


def test_other_constants_are_another_model() -> None:
    """Weights that were trained beside other constants must not be taken."""
    one, other = compiled_for("mcu"), tg.compile(tg.load("simplemlp", seed=5), tg.Recipe(train="last:1"), "mcu")
    assert one.project.files["weights.bin"][8:24] != other.project.files["weights.bin"][8:24]


@pytest.mark.parametrize("fault", ["overlap", "trained", "beyond"])
def test_the_validator_knows_flash(fault: str) -> None:
    plan = compiled_for("mcu").plan
    constants = [name for name, address in plan.state_addresses.items() if address.region == "flash"]
    trained = plan.schedule.program.trainable[0].name
    changed = {
        "overlap": {constants[1]: plan.state_addresses[constants[0]]},
        "trained": {trained: Address(FLASH, "flash", plan.flash_bytes)},
        "beyond": {constants[0]: Address(FLASH, "flash", plan.flash_bytes)},
    }[fault]
    room = 1 << 20 if fault == "trained" else plan.flash_bytes
    broken = replace(plan, state_addresses={**plan.state_addresses, **changed}, flash_bytes=room)
    with pytest.raises(PlanError, match={"overlap": "overwritten", "trained": "changes", "beyond": "beyond"}[fault]):
        validate_plan(broken)
