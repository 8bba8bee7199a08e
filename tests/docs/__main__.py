"""`python -m tests.docs --update [--figures] [DOCUMENT…]`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.docs.documents import ROOT, documents, refreshed, with_benchmarks, with_figures

arguments = sys.argv[1:]
if "--update" not in arguments:
    raise SystemExit(__doc__)
chosen = [ROOT / name for name in arguments if not name.startswith("--")] or documents()
for document in chosen:
    before = document.read_text(encoding="utf-8")
    if "--figures" in arguments:
        after = with_figures(before)
    else:
        with tempfile.TemporaryDirectory() as folder:
            after = refreshed(before, Path(folder), keep_outputs=False)
    after = with_benchmarks(after)
    if after != before:
        document.write_text(after, encoding="utf-8")
    print(f"{document.relative_to(ROOT)}: {'updated' if after != before else 'unchanged'}")
