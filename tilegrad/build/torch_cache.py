"""PyTorch makes a folder `torchinductor_USER` among the temporary files as soon as an optimizer is used; not for us."""

from __future__ import annotations

import os
from functools import cache

from tilegrad.build.cache import cache_folder
from tilegrad.build.workspace import Workspace

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def settle_torch() -> None:
    """Names another place for it, before PyTorch does, unless somebody has: where objects are cached, if anywhere."""
    if VARIABLE not in os.environ:
        objects = cache_folder()
        os.environ[VARIABLE] = str(objects.with_name("torch") if objects is not None else _passing().path)


@cache
def _passing() -> Workspace:
    """Goes with the process."""
    return Workspace()
