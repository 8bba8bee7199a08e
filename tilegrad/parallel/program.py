"""Runs a program of a folder: no model, no compiler; what the manifest lists, checked, started and fed."""

from __future__ import annotations

import hashlib
import types
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from tilegrad.build.folder import write_files
from tilegrad.build.workspace import Workspace
from tilegrad.data.batches import Batch, MiniBatches, synthetic
from tilegrad.data.stored import load_npz
from tilegrad.devices.process import HarnessDevice
from tilegrad.devices.registry import device_kind
from tilegrad.errors import DeviceError, UserError
from tilegrad.parallel.conductor import Conductor
from tilegrad.parallel.facts import Facts, FactsEngine
from tilegrad.parallel.folder import MODULE, AnyBatches, Checked, read_folder, stored_batches
from tilegrad.parallel.pool import LocalPool, Worker
from tilegrad.parallel.sample_facts import spec_from_json
from tilegrad.parallel.shares import Array, Moved
from tilegrad.parallel.specification import parse_devices


def start_engine(device: str, facts: Facts, files: dict[str, bytes]) -> FactsEngine:
    """Starts a program from its files, in a temporary folder of its own."""
    kind = device_kind(device)
    if not issubclass(kind, HarnessDevice):
        raise UserError(f"device '{device}' starts no program from a folder", stage="device")
    reason = kind.missing_to_serve(device)
    if reason is not None:
        raise DeviceError(
            f"device '{device}' cannot be used here: {reason}", stage="device", hint="run `tilegrad doctor`"
        )
    workspace = Workspace()
    with workspace.kept_on_failure() as folder:
        write_files(folder, files)
        transport = kind(device).serve(folder)
    return FactsEngine(facts, device, transport, workspace, takes_ahead=kind.capabilities.takes_ahead)


class RunningProgram:
    """What `orchestrate.py` works with. Use it as a context manager."""

    def __init__(self, checked: Checked) -> None:
        self.checked = checked
        self.training = checked.training
        self._engines: list[FactsEngine] = []
        self._pool: LocalPool | None = None
        names = self.training["devices"]
        parse_devices(",".join(names))
        with ExitStack() as undo:
            undo.callback(self.close)
            for name in names:
                folder = self.training["folders"][name]
                self._engines.append(start_engine(name, checked.facts(folder), checked.below(folder)))
            self._begin(names)
            undo.pop_all()

    def _begin(self, names: Sequence[str]) -> None:
        facts = self._engines[0].facts
        workers = [
            Worker(engine, Moved(name, engine.facts.target, sum(t.size_bytes for t in engine.facts.table.tensors)))
            for name, engine in zip(names, self._engines, strict=True)
        ]
        self._pool = LocalPool(facts.form, workers)
        _, initial = self._engines[0].exchange(None, None, {}, facts.form.held)
        self.conductor = Conductor(facts.form, initial, self._engines[0], workers[0].moved, self._pool)

    @property
    def facts(self) -> Facts:
        return self._engines[0].facts

    def batches(self, updates: int, data: str | Path | None = None) -> MiniBatches:
        """The mini-batches of so many updates: of a file, or from the seed."""
        made: AnyBatches
        stored = stored_batches(self.checked.files)
        if self.training["samples"] is None or (stored is not None and data is None):
            if data is not None or stored is None:
                raise UserError("this program is fed by the mini-batches that came with it", stage="data")
            made = stored
        else:
            spec = spec_from_json(self.training["samples"])
            batch = self.training["batch"]
            made = synthetic(self.training["seed"], spec, batch) if data is None else load_npz(data, spec, batch)
        return made.first(updates * self.training["shares"])

    def compute_shares(self, batches: Sequence[Batch]) -> list[float]:
        """The losses of mini-batches, whose gradients are added to what was computed since the last update."""
        return [float(np.asarray(outputs[0]).reshape(-1)[0]) for outputs in self.conductor.steps(batches)]

    def update(self) -> None:
        self.conductor.update()

    def weights(self) -> dict[str, Array]:
        """The trained parameters, in initializer order."""
        return {name: self.conductor.read(name) for name in self.facts.trained}

    def weights_sha256(self) -> str:
        digest = hashlib.sha256()
        for array in self.weights().values():
            digest.update(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes())
        return digest.hexdigest()

    def shares_json(self) -> dict[str, Any]:
        assert self._pool is not None
        updates = self.conductor.updates
        return {
            "accumulate": self.training["shares"],
            "updates": updates,
            "one_after_another": self.conductor.is_chained,
            "devices": [moved.as_json(updates) for moved in self._pool.moved()],
        }

    def __enter__(self) -> RunningProgram:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        while self._engines:
            self._engines.pop().close()
        if self._pool is not None:
            self._pool.join()


def open_program(folder: str | Path) -> RunningProgram:
    """Checks a folder and starts what is in it."""
    return RunningProgram(read_folder(Path(folder)))


def orchestration(checked: Checked) -> types.ModuleType:
    """The folder's own module: the text that was checked, not what may be there by now."""
    module = types.ModuleType("orchestrate")
    module.__file__ = str(checked.folder / MODULE)
    code = compile(checked.files[MODULE], module.__file__, "exec")
    exec(code, module.__dict__)  # noqa: S102 - every byte of it is what the manifest lists
    return module
