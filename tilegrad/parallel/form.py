"""What a share of an update reads and makes, found from a program's graphs.

A share is mini-batch k of an update as a pure function: weights, its own samples and its number in; gradients, loss and
batch statistics out. A session's state is more than that: a step adds to gradient sums, counts mini-batches and moves
running statistics. So each share begins with a reset flag that is on and with its own mini-batch's number, and running
statistics are set such that the step leaves the batch's part of them behind (`combine.py` applies it).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilegrad.codegen.image import attribute_text
from tilegrad.codegen.saved import little_endian, recipe_facts
from tilegrad.errors import UserError
from tilegrad.ir.graph import Graph
from tilegrad.ir.program import RESET_FLAG, Program, Role
from tilegrad.ops.base import MINIBATCH_COUNTER

_BATCH_NORM = "BatchNormInternal"
_UPDATED, _RUNNING = slice(1, 3), slice(3, 5)
"""Of its outputs and inputs: mean and variance."""


@dataclass(frozen=True)
class Form:
    """State tensors by what they are to a share.

    `chained` is what one mini-batch leaves to the next in a way that is not known to come apart: shares of such a
    program are computed one after another. `read` is all that a share reads beside that, `resident` what an update
    changes of it. `updated` is all that an update writes, `summed` what it reads of the shares' results, `inferred`
    what inference reads of them.
    """

    gradients: tuple[str, ...]
    statistics: Mapping[str, float]  # with the momentum of each
    chained: tuple[str, ...]
    flag: str | None
    counter: str | None
    read: tuple[str, ...]
    resident: tuple[str, ...]
    updated: tuple[str, ...]
    summed: tuple[str, ...]
    inferred: tuple[str, ...]

    @property
    def held(self) -> tuple[str, ...]:
        """What belongs to nobody's session: it is kept where shares are combined."""
        single = tuple(name for name in (self.flag, self.counter) if name is not None)
        return (*self.gradients, *self.statistics, *self.chained, *single)

    @cached_property
    def made(self) -> tuple[str, ...]:
        """What comes back with a share."""
        return (*self.gradients, *self.statistics, *self.chained)

    @cached_property
    def _words(self) -> dict[str, str]:
        control = {name: "control" for name in (self.flag, self.counter) if name is not None}
        statistics = dict.fromkeys((*self.statistics, *self.chained), "statistics")
        return {**dict.fromkeys(self.gradients, "gradients"), **statistics, **control}

    def what(self, name: str) -> str:
        """The word for a tensor where bytes are counted."""
        return self._words.get(name, "parameters")

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "statistics": dict(self.statistics)}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Form:
        lists = {key: tuple(value) for key, value in document.items() if isinstance(value, list)}
        return Form(**{**document, **lists, "statistics": dict(document["statistics"])})


def form_of(program: Program) -> Form:
    """What a share of this program is. A program whose optimizer is fused has none: it keeps no gradients."""
    if program.recipe.guard is not None:
        raise UserError(
            "a guard brings back earlier parameters between two mini-batches of an update, and its shares are computed "
            "at one time, with the same parameters",
            stage="recipe",
            expected="no --guard with several devices",
            got=f"--guard {program.recipe.guard}",
            hint="one device, or no --guard",
        )
    step, update, infer = (program.entries[name] for name in ("step", "update", "infer"))
    written = dict.fromkeys(state for _, state in step.writes)
    roles = {tensor.name: tensor.role for tensor in program.state}
    gradients = tuple(name for name in written if roles[name] is Role.GRADIENT)
    statistics = _separable(step)
    special = {*gradients, *statistics, RESET_FLAG, MINIBATCH_COUNTER}
    updated = tuple(dict.fromkeys(state for _, state in update.writes))
    return Form(
        gradients=gradients,
        statistics=statistics,
        chained=tuple(name for name in written if name not in special),
        flag=RESET_FLAG if RESET_FLAG in written else None,
        counter=MINIBATCH_COUNTER if MINIBATCH_COUNTER in written else None,
        read=tuple(name for name in step.state if name not in written),
        resident=tuple(name for name in updated if name in step.state and name not in written),
        updated=updated,
        summed=tuple(name for name in update.state if name in written and name != RESET_FLAG),
        inferred=tuple(name for name in infer.state if name in written),
    )


def _separable(step: Graph) -> dict[str, float]:
    """Running statistics that one BatchNormalization alone reads and writes, with its momentum."""
    readers: dict[str, int] = {}
    for node in step.nodes:
        for name in filter(None, node.inputs):
            readers[name] = readers.get(name, 0) + 1
    targets: dict[str, list[str]] = {}
    for value, state in step.writes:
        targets.setdefault(value, []).append(state)
    found = {}
    for node in step.nodes:
        if node.op != _BATCH_NORM:
            continue
        for running, updated in zip(node.inputs[_RUNNING], node.outputs[_UPDATED], strict=False):
            is_only_kept = targets.get(updated) == [running] and updated not in readers and updated not in step.outputs
            if is_only_kept and readers[running] == 1:
                found[running] = float(node.attributes.get("momentum", 0.9))  # type: ignore[arg-type]
    return found


def fingerprint(program: Program) -> str:
    """Of what a program computes and begins with, whatever it is compiled for: devices may share an update only where
    this is the same."""
    digest = hashlib.sha256()
    entries = {
        name: {
            "inputs": [[value, str(entry.types[value])] for value in entry.inputs],
            "outputs": list(entry.outputs),
            "writes": [list(pair) for pair in entry.writes],
            "nodes": [_node(node) for node in entry.nodes],
        }
        for name, entry in program.entries.items()
    }
    recipe = {key: value for key, value in recipe_facts(program).items() if key != "train"}
    digest.update(json.dumps([program.name, recipe, entries], sort_keys=True).encode())
    for tensor in program.state:
        digest.update(json.dumps([tensor.name, str(tensor.type), tensor.role.value, tensor.owner]).encode())
        if tensor.initial is not None:
            digest.update(little_endian(np.asarray(tensor.initial.array)))
    return digest.hexdigest()


def _node(node: Any) -> Sequence[Any]:
    attributes = sorted((key, attribute_text(value)) for key, value in node.attributes.items())
    return [node.op, list(node.inputs), list(node.outputs), attributes]
