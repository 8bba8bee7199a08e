"""`python -m tests.docs --update [DOCUMENT…]`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.docs.documents import ROOT, documents, refreshed

arguments = sys.argv[1:]
if "--update" not in arguments:
    raise SystemExit(__doc__)
chosen = [ROOT / name for name in arguments if name != "--update"] or documents()
for document in chosen:
    before = document.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        after = refreshed(before, Path(folder), keep_outputs=False)
    if after != before:
        document.write_text(after, encoding="utf-8")
    print(f"{document.relative_to(ROOT)}: {'updated' if after != before else 'unchanged'}")
