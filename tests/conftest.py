"""Shared configuration: hypothesis is deterministic, so that a failure in CI is a failure at the desk."""

from __future__ import annotations

import importlib.util
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "tilegrad", derandomize=True, deadline=None, max_examples=25, suppress_health_check=list(HealthCheck)
)
settings.load_profile("tilegrad")

NO_TORCH = importlib.util.find_spec("torch") is None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Where PyTorch cannot be installed, a test module that imports it is skipped by name, not broken."""
    report = yield
    if NO_TORCH and report.failed and "No module named 'torch'" in str(report.longrepr):
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 1, "Skipped: PyTorch is not installed")
    return report
