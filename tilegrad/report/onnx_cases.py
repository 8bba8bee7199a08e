"""ONNX's backend node cases, run through generated C: what passes, what is unsupported and why.

The list is generated, never kept by hand: a case is unsupported because the frontend or an operator refuses it, and
the reason is that refusal.
"""

from __future__ import annotations

import argparse
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Any

import onnx

from tilegrad.errors import TilegradError, UserError
from tilegrad.onnx_backend import prepare
from tilegrad.ops import registry


class Status(Enum):
    PASSED = "passed"
    FOLDED = "folded"  # with its shaping inputs baked in nothing is left to compute: says nothing about our kernels
    UNSUPPORTED = "unsupported"
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    case: str
    operator: str
    status: Status
    reason: str = ""


@dataclass(frozen=True)
class Case:
    """`operator` is what the case is about; the bodies by which ONNX defines an operator go under its name, too."""

    name: str
    operator: str
    model: onnx.ModelProto
    data_sets: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    rtol: float
    atol: float


def node_cases(names: Sequence[str] = ()) -> list[Case]:
    """The cases whose name contains one of `names` (all without), as ONNX's loader makes them."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, from ONNX making its overflow cases
        found: list[Any] = load_model_tests(kind="node")
    operators = {case.name: case.model.graph.node[0].op_type for case in found}
    cases = []
    for case in found:
        stem, is_body, _ = case.name.partition("_expanded")
        operator = f"{operators.get(stem, stem)} (body)" if is_body else operators[case.name]
        if not names or any(name in case.name for name in names):
            cases.append(Case(case.name, operator, case.model, case.data_sets, case.rtol, case.atol))
    return cases


def run_case(case: Case) -> Outcome:
    from onnx.backend.test.runner import Runner

    prepared = prepare(case.model)
    computes = False
    try:
        for inputs, outputs in case.data_sets:
            results = prepared.run(inputs)
            Runner.assert_similar_outputs(outputs, results, rtol=case.rtol, atol=case.atol)
            computes |= bool(prepared.compiled and prepared.compiled.program.entries["infer"].nodes)
    except UserError as error:
        return Outcome(case.name, case.operator, Status.UNSUPPORTED, _reason(error))
    except (TilegradError, AssertionError, TypeError, ValueError, KeyError, IndexError, ArithmeticError) as error:
        return Outcome(case.name, case.operator, Status.FAILED, " ".join(f"{type(error).__name__}: {error}".split()))
    return Outcome(case.name, case.operator, Status.PASSED if computes else Status.FOLDED)


def run_cases(cases: Iterable[Case], workers: int | None = None) -> Iterator[Outcome]:
    """In the order given. Threads do: the time goes into compilers and programs."""
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        yield from pool.map(run_case, cases)


def _reason(error: UserError) -> str:
    """One line, without the names of a case's own tensors and nodes."""
    if "that tilegrad does not have" in error.message:
        return "no operator " + ", ".join(sorted(set(re.findall(r"([\w.]+): '", error.got or ""))))
    parts = [error.message]
    if error.got is not None and error.got not in error.message:
        parts.append(f"it is {error.got}" + (f", not {error.expected}" if error.expected else ""))
    return re.sub(r" ?\(?'[^']*'\)?", "", " ".join("; ".join(parts).split()))[:200]


def supports_types_and_operators(case: Case) -> bool:
    """Whether every operator of a case is ours and every tensor of a type we have."""
    model = case.model
    values = [*model.graph.input, *model.graph.output]
    kinds = {onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL}
    kinds |= {getattr(onnx.TensorProto, f"{sign}INT{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)}
    return all(v.type.HasField("tensor_type") and v.type.tensor_type.elem_type in kinds for v in values) and all(
        registry.find(node.op_type) is not None and node.domain in ("", "ai.onnx") for node in model.graph.node
    )


def text_report(outcomes: Sequence[Outcome]) -> str:
    """Counts, then the unsupported cases by operator with their reasons, then the failures."""
    counts = Counter(outcome.status for outcome in outcomes)
    lines = [", ".join(f"{counts[status]} {status.value}" for status in Status), ""]
    passed = Counter(o.operator for o in outcomes if o.status is Status.PASSED)
    reasons = Counter((o.operator, o.reason) for o in outcomes if o.status is Status.UNSUPPORTED)
    lines += ["| operator | passed | unsupported | reason |", "|---|---|---|---|"]
    for operator in sorted({o.operator for o in outcomes}, key=str.lower):
        own = [(reason, count) for (name, reason), count in sorted(reasons.items()) if name == operator]
        for i, (reason, count) in enumerate(own or [("", 0)]):
            first = str(passed[operator]) if i == 0 else ""
            lines.append(f"| {operator if i == 0 else ''} | {first} | {count or ''} | {reason.replace('|', '/')} |")
    failures = [f"FAILED {o.case} ({o.operator}): {o.reason[:300]}" for o in outcomes if o.status is Status.FAILED]
    return "\n".join([*lines, *([""] if failures else []), *failures])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tilegrad.report.onnx_cases", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--report", action="store_true", help="run the node cases and print the matrix")
    parser.add_argument("--jobs", type=int, default=None, help="cases at a time (default: one per core)")
    parser.add_argument("names", nargs="*", help="only cases whose name contains one of these")
    options = parser.parse_args(arguments)
    if not options.report:
        parser.error("nothing to do; --report runs ONNX's node cases")
    print(text_report(list(run_cases(node_cases(options.names), options.jobs))))


if __name__ == "__main__":
    main()
