"""Which tests `make check` leaves out: those that take too long for two minutes together, written to tests/slow.txt.

`python tools/slow_tests.py` runs what `make test` does but documents (a quarter of an hour), and counts the processor
time of each test, its programs' included: other than time on a clock, it hardly depends on what else a machine does.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent / "tests"
LIST = TESTS / "slow.txt"
HEAD = "# Left out by `make check`; `make test` runs them. Written by tools/slow_tests.py.\n"
FOLDER = "TILEGRAD_SLOW_TESTS"
# Of a test function: seconds of the mean and of the longest of its cases, and of all of them.
MEAN, LONGEST, ALL = 0.2, 0.4, 1.2
# However long they take, a check has them: what stands for its package, and what is to hold at each commit.
KEPT = (
    "blocks/test_blocks.py::test_a_width_that_is_set_at_run_time_gives_the_hosts_bits",
    "calibration/test_counting.py::test_a_matrix_product_does_one_multiply_add_per_mac",
    "codegen/test_tools.py",
    "costs/",
    "devices/test_conformance.py::test_losses_gradients_and_weights",
    "devices/test_host.py",
    "devices/test_qemu.py::test_the_bits_are_the_hosts",
    "devices/test_sim.py::test_infer_gives_the_hosts_bits",
    "docs/",
    "exploration/test_explore.py::test_a_search_with_a_budget_is_the_same_again",
    "fit/test_exact.py",
    "frontend/",
    "given/test_operators.py",
    "ops/",
    "parallel/test_folder.py::test_compile_writes_the_folder_that_run_takes",
    "place/test_validate.py",
    "sequence/test_decode.py::test_words_say_what_is_listed",
    "sequence/test_replay.py::test_faults_are_found",
    "test_new_operator.py",
    "test_one_policy.py::test_python_and_the_command_line_give_the_same_bytes",
    "test_package_order.py",
    "test_register.py",
    "zoo/",
)


def _seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Each test tells what it took, in a file of its process."""
    before = _seconds()
    result = yield
    if FOLDER in os.environ and item.get_closest_marker("slow") is None:
        with (Path(os.environ[FOLDER]) / str(os.getpid())).open("a", encoding="utf-8") as out:
            out.write(json.dumps([item.nodeid, _seconds() - before]) + "\n")
    return result


def slow_tests(taken: dict[str, float]) -> list[str]:
    """Functions, by what each of their cases took."""
    functions: dict[str, list[float]] = {}
    for case, seconds in taken.items():
        functions.setdefault(re.sub(r"\[.*", "", case.removeprefix("tests/")), []).append(seconds)
    return sorted(
        name
        for name, own in functions.items()
        if (sum(own) / len(own) > MEAN or max(own) > LONGEST or sum(own) > ALL) and not name.startswith(KEPT)
    )


def main() -> int:
    LIST.write_text(HEAD, encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
        environment = {**os.environ, FOLDER: folder, "PYTHONPATH": path}
        command = [sys.executable, "-m", "pytest", "-n", "2", "-p", "slow_tests", "--ignore", str(TESTS / "docs")]
        status = subprocess.run(command, env=environment, check=False).returncode
        taken = dict(json.loads(line) for file in Path(folder).iterdir() for line in file.open(encoding="utf-8"))
    LIST.write_text(HEAD + "".join(f"{name}\n" for name in slow_tests(taken)), encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
