"""What other processes are given to do: some of it kills them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any


def deadly(task: Mapping[str, Any]) -> dict[str, Any]:
    if task["number"] in (3, 4):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
    return {"status": "ok", "reason": None, "figures": {"memory": task["number"]}}
