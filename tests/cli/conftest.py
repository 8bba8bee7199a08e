from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tests.support.small_models import linear, saved


@pytest.fixture
def tilegrad(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.delenv("COLUMNS", raising=False)  # tables as wide as without a terminal, whoever runs the tests
    return CommandLine(capsys)


@pytest.fixture
def linear_file(tmp_path: Path) -> Path:
    return saved(linear(), tmp_path)
