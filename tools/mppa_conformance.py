"""Takes an MPPA through the conformance suite and a few trainings, and leaves a folder to send back (docs/mppa.md).

    python tools/mppa_conformance.py mppa:iss:arch=kv3-2 -o report [--models simplemlp,mlp,dscnn] [--no-suite]

Exit status: 0 all as it should be, 1 something differs or fails, 2 no such device or folder, 3 tools are missing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from tilegrad.devices.mppa import COMPILER, RUNNERS
from tilegrad.devices.mppa_configuration import parse
from tilegrad.devices.registry import device_kind
from tilegrad.errors import UserError

ROOT = Path(__file__).parents[1]
SUITE = "tests/devices/test_conformance.py"


def told(command: list[str], **variables: str) -> tuple[int, str]:
    """How a command ended, and all that it said."""
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def versions(device: str) -> str:
    tools = (COMPILER, RUNNERS[parse(device).platform].tool)
    return "\n".join(f"$ {tool} --version\n{told([tool, '--version'])[1]}" for tool in tools)


def train(model: str, device: str, steps: int, folder: Path) -> dict[str, object]:
    """What a training says of itself; an error where it failed."""
    name = "device" if device != "sim:mppa" else "sim"
    command = [sys.executable, "-m", "tilegrad", "train", model, "--device", device, "--steps", str(steps)]
    status, text = told([*command, "--no-verify", "--json", str(folder / f"{model}.{name}.json")])
    (folder / f"{model}.{name}.txt").write_text(text, encoding="utf-8")
    file = folder / f"{model}.{name}.json"
    if status != 0 or not file.exists():
        return {"error": f"exit status {status}", "said": text[-2000:]}
    found = json.loads(file.read_text(encoding="utf-8"))
    return {key: found[key] for key in ("losses", "weights_sha256", "timings")}


def suite(device: str, folder: Path) -> int:
    command = [sys.executable, "-m", "pytest", SUITE, "-q", "-n", "0", f"--junitxml={folder / 'conformance.xml'}"]
    status, text = told(command, TILEGRAD_CONFORMANCE=device, PYTHONPATH=str(ROOT))
    (folder / "conformance.txt").write_text(text, encoding="utf-8")
    return status


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("device")
    parser.add_argument("-o", dest="folder", type=Path, required=True)
    parser.add_argument("--models", default="simplemlp,mlp,dscnn")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--no-suite", action="store_true")
    asked = parser.parse_args(arguments)
    try:
        reason = device_kind(asked.device).missing(asked.device)
        parse(asked.device)
        asked.folder.mkdir(parents=True)
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if reason is not None:
        asked.folder.rmdir()
        print(f"device '{asked.device}' cannot be used here: {reason}", file=sys.stderr)
        return 3
    folder = asked.folder.absolute()
    (folder / "versions.txt").write_text(versions(asked.device), encoding="utf-8")
    summary: dict[str, object] = {"device": asked.device, "steps": asked.steps}
    is_right = True
    for model in asked.models.split(","):
        runs = {name: train(model, name, asked.steps, folder) for name in (asked.device, "sim:mppa")}
        first, second = (run.get("weights_sha256") for run in runs.values())
        same = first is not None and first == second
        is_right &= same
        summary[model] = {"same_bits": same, **runs}
        print(f"{model}: {'the bits of sim:mppa' if same else 'NOT the bits of sim:mppa'}", flush=True)
    if not asked.no_suite:
        status = suite(asked.device, folder)
        is_right &= status == 0
        summary["suite"] = "passed" if status == 0 else f"pytest ended with {status}"
        print(f"conformance suite: {summary['suite']}")
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
