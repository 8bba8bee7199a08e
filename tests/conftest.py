"""Shared configuration and fixtures. Hypothesis is deterministic: a failure in CI is a failure at the desk."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "tilegrad", derandomize=True, deadline=None, max_examples=25, suppress_health_check=list(HealthCheck)
)
settings.load_profile("tilegrad")

os.environ.pop("COLUMNS", None)  # messages and tables as wide as without a terminal, whoever runs the tests

if TYPE_CHECKING:
    from tests.support.command_line import CommandLine

NO_TORCH = importlib.util.find_spec("torch") is None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Where PyTorch cannot be installed, a test module that imports it is skipped by name, not broken."""
    report = yield
    if NO_TORCH and report.failed and "No module named 'torch'" in str(report.longrepr):
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 1, "Skipped: PyTorch is not installed")
    return report


@pytest.fixture
def tilegrad(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Runs a command in this process."""
    from tests.support.command_line import CommandLine

    return CommandLine(capsys)


@pytest.fixture
def linear_file(tmp_path: Path) -> Path:
    """The smallest model that trains: 8 features, 4 classes."""
    from tests.support.small_models import linear, saved

    return saved(linear(), tmp_path)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What tests/slow.txt names is slow, as if it was marked where it is written."""
    listed = frozenset((Path(__file__).parent / "slow.txt").read_text(encoding="utf-8").splitlines())
    for item in items:
        if item.nodeid.partition("[")[0].removeprefix("tests/") in listed:
            item.add_marker(pytest.mark.slow)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden C of tests/codegen anew")
