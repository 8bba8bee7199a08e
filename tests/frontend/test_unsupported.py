"""What is said of operators that tilegrad does not have."""

from __future__ import annotations

from tilegrad.frontend.unsupported import REWRITES
from tilegrad.ops import registry


def test_no_rewrite_is_advised_for_what_there_is() -> None:
    assert [name for name in REWRITES if registry.find(name) is not None] == []
