"""A Loop of constants, trip by trip, whatever runs its body."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx

from tilegrad.bounds import MAX_FOLDED_BYTES, MAX_TRIPS

_TOO_LONG = f"a Loop of more than {MAX_TRIPS} trips is not run at import"

Body = Callable[[dict[str, Any]], list[Any]]


class NotFolded(Exception):
    """Why something is not computed at import, though all that it reads is constant."""


def run_loop(node: onnx.NodeProto, body: onnx.GraphProto, feeds: Mapping[str, Any], run: Body) -> list[Any]:
    """The Loop's outputs: what its trips hand on, then what each of them adds to a list, stacked."""
    names = [value.name for value in body.input]
    carried = [feeds[name] for name in node.input[2:]]
    limit = _number(feeds, node.input[0]) if node.input and node.input[0] else None
    goes_on = bool(_number(feeds, node.input[1])) if len(node.input) > 1 and node.input[1] else True
    if limit is not None and limit > MAX_TRIPS:
        raise NotFolded(_TOO_LONG)
    stacks: list[list[Any]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    trips = 0
    while goes_on and (limit is None or trips < limit):
        if trips == MAX_TRIPS:
            raise NotFolded(_TOO_LONG)
        inputs = dict(zip(names, [np.array(trips), np.array(goes_on), *carried], strict=True))
        condition, *results = run(inputs)
        goes_on = bool(np.asarray(condition).reshape(-1)[0])
        carried = results[: len(carried)]
        for stack, item in zip(stacks, results[len(carried) :], strict=True):
            stack.append(item)
        trips += 1
    stacked_bytes = sum(np.asarray(item).nbytes for stack in stacks for item in stack)
    if stacked_bytes > MAX_FOLDED_BYTES:
        raise NotFolded(f"what its trips add up to is over {MAX_FOLDED_BYTES >> 20} MB")
    return [*carried, *(np.stack(stack) for stack in stacks)]


def _number(feeds: Mapping[str, Any], name: str) -> int:
    return int(np.asarray(feeds[name]).reshape(-1)[0])
