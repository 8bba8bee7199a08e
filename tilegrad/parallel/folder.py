"""A program over several devices as a folder: how it is written, and how it is checked when it is loaded.

    FOLDER/manifest.json     the SHA-256 of every file
    FOLDER/orchestrate.py    the training, as a module to read
    FOLDER/training.json     devices, shares, samples
    FOLDER/host/             one folder per kind of device: C project, what was built of it, weights, manifest

Files are read once, compared with the manifest, and what was read is what runs.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilegrad import __version__
from tilegrad.build.ownership import MANIFEST, WRITER, read_plain, with_listing
from tilegrad.compiled import Compiled
from tilegrad.data.batches import Batches, GivenBatches
from tilegrad.data.samples import make_batches, sample_spec
from tilegrad.devices.process import HarnessDevice
from tilegrad.devices.registry import device_kind
from tilegrad.errors import UserError
from tilegrad.parallel.facts import FILE as FACTS_FILE
from tilegrad.parallel.facts import Facts, facts_of
from tilegrad.parallel.sample_facts import spec_json
from tilegrad.parallel.specification import Specification

TRAINING = "training.json"
MODULE = "orchestrate.py"
BATCHES = "batches.npz"
README = "README.md"
FORMAT = 1
_MOST_FILE_BYTES = 1 << 32
_STAGE = "load"

_MODULE_TEXT = '''"""Trains '{model}' on {devices}: {shares} shares an update, added in share order.

Written by tilegrad {version}. `tilegrad run FOLDER` checks every file of this folder and then calls `train`;
`python orchestrate.py` does the same. The bits are those of `--accum {shares}` on one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tilegrad.data.batches import Batch
from tilegrad.parallel.program import RunningProgram, open_program

DEVICES = (
{names}
)
SHARES = {shares}
UPDATES = {updates}


def train(program: RunningProgram, batches: Sequence[Batch], updates: int = UPDATES) -> list[float]:
    """The losses, one per share. Parameters were placed when the program was opened, and stay on the devices."""
    losses: list[float] = []
    for update in range(updates):
        # Whichever device is free takes the next share: samples go there, gradients and the loss come back. They are
        # added here in share order, one rounded addition each, so that it does not matter who computed what.
        losses += program.compute_shares(batches[update * SHARES : (update + 1) * SHARES])
        # The sum goes to DEVICES[0], which makes the update; the others get the parameters that it changed.
        program.update()
    return losses


if __name__ == "__main__":
    with open_program(Path(__file__).parent) as opened:
        for number, loss in enumerate(train(opened, opened.batches(UPDATES)), start=1):
            print(f"mini-batch {{number}}: loss {{loss:.7g}}")
        print(f"weights_sha256 {{opened.weights_sha256()}}")
'''

_README_TEXT = """# {model} on {devices}

A training over several devices, as `tilegrad compile {model} --device '{devices}'` wrote it.

- `tilegrad run .` checks every file against `manifest.json` and trains: {updates} updates of {shares} shares.
- `orchestrate.py` is what it does, to read.
{folders}
The folder can be copied anywhere. No compiler is needed on a machine with a processor like the one it was written on.
"""


def folder_name(device: str) -> str:
    """Of a kind of device: `host`, `sim-siracusa`, `qemu-riscv32`, `opencl`."""
    kind = device_kind(device)
    target = kind.target_of(device)
    return kind.kind if kind.kind == target else f"{kind.kind}-{target}"


def program_files(
    programs: Mapping[str, Compiled], devices: Specification, *, updates: int, use_cache: bool = True
) -> dict[str, bytes]:
    """All files of the folder, by path. `programs` has the program for each target, by the target's name."""
    first = programs[device_kind(devices.first).target_of(devices.first)]
    files: dict[str, bytes] = {}
    folders: dict[str, str] = {}
    for name in devices.kinds:
        kind = device_kind(name)
        folder = folder_name(name)
        if folder in folders.values():
            folders[name] = folder
            continue
        folders[name] = folder
        compiled = programs[kind.target_of(name)]
        files |= {f"{folder}/{path}": data for path, data in device_files(name, compiled, use_cache=use_cache).items()}
    recipe = first.program.recipe
    words = {
        "model": first.name,
        "devices": devices.text,
        "shares": recipe.accumulate,
        "updates": updates,
        "version": __version__,
        "names": "\n".join(f'    "{name}",' for name in devices.names),
        "folders": "".join(f"- `{folder}/`: the C project of {folder}, and what was built of it.\n" for folder in
                           dict.fromkeys(folders.values())),
    }
    training = {
        "format": FORMAT,
        "tilegrad": __version__,
        "model": first.name,
        "devices": list(devices.names),
        "specification": devices.text,
        "folders": folders,
        "shares": recipe.accumulate,
        "batch": recipe.batch,
        "seed": recipe.seed,
        "updates": updates,
        "samples": None,
    }
    batches = make_batches(first, None)
    if isinstance(batches, GivenBatches):
        files[BATCHES] = _batches_bytes(batches)
    else:
        training["samples"] = spec_json(sample_spec(first))
    files[TRAINING] = (json.dumps(training, indent=1) + "\n").encode()
    files[MODULE] = _MODULE_TEXT.format(**words).encode()
    files[README] = _README_TEXT.format(**words).encode()
    return files


def device_files(device: str, compiled: Compiled, *, use_cache: bool = True) -> dict[str, bytes]:
    """A self-contained folder for one kind of device: C project, what was built of it, facts, manifest."""
    kind = device_kind(device)
    with kind(device, use_cache=use_cache) as opened:
        if not isinstance(opened, HarnessDevice):
            raise UserError(f"programs for device '{device}' are not kept in folders", stage="build")
        files = opened.built_files(compiled)
    return with_listing({**files, FACTS_FILE: facts_of(compiled).as_bytes()})


def _batches_bytes(batches: GivenBatches) -> bytes:
    """Mini-batches that came with a training graph."""
    stream = io.BytesIO()
    arrays = {f"{i}.{j}": array for i, batch in enumerate(batches.made) for j, array in enumerate(batch)}
    np.savez(stream, **arrays)  # type: ignore[arg-type]
    return stream.getvalue()


# ---- loading


@dataclass(frozen=True, eq=False)
class Checked:
    """A folder whose files are all what was written. `files` are what was read."""

    folder: Path
    files: Mapping[str, bytes]

    @property
    def training(self) -> dict[str, Any]:
        return dict(json.loads(self.files[TRAINING]))

    def below(self, folder: str) -> dict[str, bytes]:
        """The files of a sub-folder, by their paths in it."""
        return {name[len(folder) + 1 :]: data for name, data in self.files.items() if name.startswith(f"{folder}/")}

    def facts(self, folder: str) -> Facts:
        return Facts.from_bytes(self.files[f"{folder}/{FACTS_FILE}"])


def read_folder(folder: Path) -> Checked:
    """Every file that the manifest lists, with the content that it names; anything else is refused by name."""
    if not folder.is_dir():
        raise UserError(f"there is no folder '{folder}'", stage=_STAGE, hint="compile MODEL --device 'D*N' -o FOLDER")
    manifest = _manifest(folder)
    files: dict[str, bytes] = {}
    for name, digest in manifest["files"].items():
        content = read_plain(folder, name, _MOST_FILE_BYTES)
        if content is None:
            raise _refused(folder, name, "is missing, or is no plain file")
        if hashlib.sha256(content).hexdigest() != digest:
            raise _refused(folder, name, "is not what was written: its SHA-256 is another one")
        files[name] = content
    for name in (TRAINING, MODULE):
        if name not in files:
            raise UserError(
                f"'{folder}' is no program over several devices",
                stage=_STAGE,
                expected=f"a folder with {TRAINING} and {MODULE}",
                got=f"a folder of tilegrad's without {name}",
                hint="compile MODEL --device 'D*N' -o FOLDER writes one",
            )
    checked = Checked(folder, files)
    _check_training(checked)
    return checked


def _refused(folder: Path, name: str, why: str) -> UserError:
    return UserError(
        f"'{name}' of the program in '{folder}' {why}",
        stage=_STAGE,
        expected="a folder as tilegrad wrote it, complete and unchanged",
        got=name,
        hint="copy it again, or compile it again",
    )


def _manifest(folder: Path) -> dict[str, Any]:
    """The manifest, which must be as it was written to the byte."""
    content = read_plain(folder, MANIFEST, _MOST_FILE_BYTES)
    if content is None:
        raise UserError(
            f"'{folder}' is no program of tilegrad's: it has no {MANIFEST}",
            stage=_STAGE,
            hint="compile MODEL --device 'D*N' -o FOLDER writes one",
        )
    try:
        document = json.loads(content)
        said = {key: value for key, value in document.items() if key != "sha256"}
        digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
        is_whole = document["sha256"] == digest and document["written_by"]["name"] == WRITER
        is_whole = is_whole and (json.dumps(document, indent=1) + "\n").encode() == content
        names = document["files"]
        is_whole = is_whole and all(isinstance(key, str) and isinstance(names[key], str) for key in names)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        is_whole = False
    if not is_whole:
        raise _refused(folder, MANIFEST, "is not what was written")
    return dict(document)


def _check_training(checked: Checked) -> None:
    """Every device has its program, and all programs are the same one."""
    training = checked.training
    if training.get("format") != FORMAT:
        raise UserError(
            f"the program in '{checked.folder}' is in another version of the format",
            stage=_STAGE,
            expected=f"version {FORMAT}",
            got=f"version {training.get('format')}",
        )
    folders = dict.fromkeys(training["folders"][name] for name in training["devices"])
    found = {}
    for folder in folders:
        if f"{folder}/{FACTS_FILE}" not in checked.files:
            raise _refused(checked.folder, f"{folder}/{FACTS_FILE}", "is missing")
        found[folder] = checked.facts(folder)
    first = next(iter(found))
    for folder, facts in found.items():
        if facts.fingerprint != found[first].fingerprint:
            raise UserError(
                f"the devices of '{checked.folder}' have different programs",
                stage=_STAGE,
                expected=f"the program of '{first}', {found[first].name} {found[first].fingerprint[:12]}",
                got=f"'{folder}' has {facts.name} {facts.fingerprint[:12]}",
                hint="compile it again for all devices at once",
            )


def stored_batches(files: Mapping[str, bytes]) -> GivenBatches | None:
    """Mini-batches that are in the folder."""
    if BATCHES not in files:
        return None
    with np.load(io.BytesIO(files[BATCHES]), allow_pickle=False) as arrays:
        rows: dict[int, dict[int, Any]] = {}
        for name in arrays.files:
            i, j = map(int, name.split("."))
            rows.setdefault(i, {})[j] = arrays[name]
    return GivenBatches(tuple(tuple(rows[i][j] for j in sorted(rows[i])) for i in sorted(rows)))


AnyBatches = Batches | GivenBatches
