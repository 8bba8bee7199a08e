"""How a schedule's nests become statements: one way for flat memory, another for a hierarchy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tilegrad.analysis.tables import argument_values
from tilegrad.codegen import c
from tilegrad.codegen.kernels import KernelSet
from tilegrad.codegen.tensor_names import TensorNames
from tilegrad.errors import InternalError
from tilegrad.ir.nest import Access, Nest, NestKind, operand_box, row_major_strides, whole
from tilegrad.ir.plan import Address, Plan
from tilegrad.ir.schedule import Launch
from tilegrad.ir.types import TensorType
from tilegrad.ops.kernels import KernelSignature


def shape_text(tensor_type: TensorType) -> str:
    return f"[{','.join(map(str, tensor_type.shape))}]"


@dataclass(frozen=True)
class KernelCall:
    """A nest as one call of its kernel on whole operands, as numbers: what is printed as C, or launched on OpenCL.

    `arguments` are in the order of the signature's struct. `operands`, in that of its pointers, are values, each with
    how many bytes of it are skipped; None is a null pointer.
    """

    signature: KernelSignature
    arguments: tuple[int | float, ...]
    operands: tuple[tuple[str | None, int], ...]


@dataclass(frozen=True)
class Run:
    """A nest as a statement of its node's function: what is said of it, and the macro that runs it.

    In one memory it has the type of its arguments and their fields, the kernel and its pointers.
    """

    comment: str | None
    macro: str
    arguments: tuple[str, ...] = ()
    operands: tuple[str, ...] = ()


Body: TypeAlias = tuple[Run, ...]
First: TypeAlias = tuple[str, int]
"""The first nest of a function that is called: its entry, and how many nests that has before it."""


class Lowering:
    """Translates nests in order; what they need declared first is in `items` afterwards.

    In one memory: a nest is a kernel call on operands where they live, with its arguments in front of it.
    """

    result = "TG_OK"

    def __init__(self, plan: Plan, kernels: KernelSet) -> None:
        self.plan = plan
        self.kernels = kernels
        self.names = TensorNames(plan)
        self._kinds: dict[NestKind, tuple[tuple[int | float, ...], tuple[int, ...]]] = {}
        self._users: Counter[tuple[str, ...]] = Counter()
        self._common: dict[tuple[str, ...], str] = {}
        self._counts: Counter[str] = Counter()

    @property
    def width(self) -> int:
        """Of lines that list constants."""
        return c.LINE_WIDTH

    def items(self) -> list[c.Item]:
        """Tables and helper functions."""
        return []

    def call(self, name: str, first: First, is_shared: bool) -> c.Call:
        """A call of a node's function."""
        del first, is_shared
        return c.Call(name, ("m",))

    def where_is(self, value: str, address: Address, skipped: int = 0) -> str:
        """A value's address as C: `ARENA(hidden)`, or some bytes further on."""
        further = f" + {skipped}" if skipped else ""
        return f"{address.region.upper()}({self.names.of(value, address)}{further})"

    def at_start(self, entry: str) -> tuple[c.Statement, ...]:
        return ()

    def at_end(self, entry: str) -> tuple[c.Statement, ...]:
        return ()

    def has_one_place(self, launch: Launch) -> bool:
        """Whether the function that a launch is in always finds its operands at the same addresses."""
        del launch
        return True

    def launch(self, entry: str, number: int) -> Launch:
        return self.plan.schedule.entries[entry].launches[number]

    def signature(self, launch: Launch, nest: Nest) -> KernelSignature:
        node = launch.node
        signature = self.kernels.signatures.get(nest.kernel)
        if signature is None:
            raise InternalError(f"no kernel tg_{nest.kernel} for node '{node.name}' ({node.op})")
        pointers = [operand.name for operand in nest.without_epilogues.pointers]
        if pointers != [pointer for _, pointer in signature.pointers]:
            raise InternalError(f"the nest of node '{node.name}' does not match the pointers of tg_{nest.kernel}")
        return signature

    def note(self, entry: str, number: int, k: int, operand: str) -> str:
        """What else is to say of an operand."""
        return ""

    def describe(self, entry: str, number: int, k: int) -> str:
        """The comment that explains a nest: operator, work, operands with their shapes."""
        launch = self.launch(entry, number)
        nest = launch.nests[k]
        types = self.plan.schedule.entries[entry].types
        present = [(operand, operand.value) for operand in nest.operands if operand.value is not None]
        places = {value: self.plan.address(entry, value, number) for _, value in present}
        read_at = {places[value] for operand, value in present if operand.access is Access.READ}
        has_one_place = self.has_one_place(launch)
        operands = []
        # A flag or rate says nothing new, unless there is nothing else.
        for operand, value in [pair for pair in present if not pair[1].startswith("tg.")] or present:
            if has_one_place and operand.access is Access.WRITE and places[value] in read_at:
                operands.append(f"{operand.name} in place")
                continue
            note = self.note(entry, number, k, operand.name) if has_one_place else ""
            operands.append(f"{operand.name} {c.comment_text(value)}{shape_text(types[value])}{note}")
        part = f" {k + 1}/{len(launch.nests)}" if len(launch.nests) > 1 else ""
        work = f", {nest.macs} MACs" if nest.macs else ""
        title = f"{launch.node.op}{part}{work}"
        return c.filled([f"{title}: {operands[0]}", *operands[1:]]) if operands else title

    def share(self, bodies: Collection[Body]) -> None:
        """All functions there will be, before the first is made."""
        self._users.update(arguments for body in bodies for arguments in {run.arguments for run in body})

    def before_function(self, body: Body) -> list[c.Item]:
        """What has to be declared in front of it: arguments that several functions have, before the first of them."""
        result: list[c.Item] = []
        for arguments in (run.arguments for run in body if run.arguments):
            if self._users[arguments] > 1 and arguments not in self._common:
                stem = arguments[0].removeprefix("tg_")
                self._common[arguments] = f"{stem}_{self._counts[stem]}"
                self._counts[stem] += 1
                result.append(_declared(arguments, self._common[arguments]))
        return result

    def function(self, name: str, title: str, body: Body, firsts: Sequence[First]) -> c.Function:
        """The function of a node; `firsts` are its first nests, one for each time that it is called. Arguments get
        names of their own, and equal ones are declared once."""
        del firsts
        names = dict(self._common)
        own = 0
        result: list[c.Statement] = []
        for run in body:
            result += [c.Comment(run.comment)] if run.comment else []
            if run.arguments not in names:
                own += 1
                names[run.arguments] = f"args_{own}" if own > 1 else "args"
                result.append(_declared(run.arguments, names[run.arguments]))
            kernel, *pointers = run.operands
            result.append(c.Call(run.macro, (kernel, f"&{names[run.arguments]}", *pointers)))
        return c.Function("static void", name, ("tg_model *m",), tuple(result), title)

    def after_inputs(self, entry: str) -> tuple[c.Statement, ...]:
        """Every core copies the same inputs; the first kernel may write over them, so none starts before all have."""
        inputs = self.plan.schedule.entries[entry].graph.inputs
        return (c.Call("tg_barrier", ()),) if self.plan.schedule.target.cores > 1 and inputs else ()

    def kernel_call(self, entry: str, number: int, k: int) -> KernelCall:
        launch = self.launch(entry, number)
        nest = launch.nests[k]
        signature = self.signature(launch, nest)
        arguments, inner = self._numbers(nest.anchored, signature)
        skipped = [outer + more for outer, more in zip(nest.skipped_bytes, inner, strict=True)]
        operands = [(operand.value, more) for operand, more in zip(nest.operands, skipped, strict=True)]
        return KernelCall(signature, arguments, tuple(operands))

    def _numbers(self, nest: Nest, signature: KernelSignature) -> tuple[tuple[int | float, ...], tuple[int, ...]]:
        """A nest's arguments, and the bytes in front of each operand's box: the same for all nests of a kind.

        A kernel's pointer is where its box starts: inside the tensor for a part of it (Concat, Slice).
        """
        if nest.kind in self._kinds:
            return self._kinds[nest.kind]
        strides = {o.name: row_major_strides(o.shape) for o in nest.operands if o.value is not None}
        tile = whole(nest)
        arguments = argument_values(signature.arguments.fields, nest, tile, strides)
        skipped = []
        for operand in nest.operands:
            box = operand_box(operand, tile) if operand.value is not None else ()
            starts = (r.start * stride for r, stride in zip(box, strides.get(operand.name, ()), strict=True))
            skipped.append(operand.element_bytes * sum(starts) if all(r.size for r in box) else 0)
        self._kinds[nest.kind] = tuple(arguments), tuple(skipped)
        return self._kinds[nest.kind]

    def nest(self, entry: str, number: int, k: int) -> Run:
        """Nest `k` of launch `number`."""
        call = self.kernel_call(entry, number, k)
        signature = call.signature
        fields = [
            (name, c.float_literal(float(value)) if c_type == "float" else str(value))
            for (c_type, name), value in zip(signature.arguments.fields, call.arguments, strict=True)
        ]
        # C sets to zero what an initializer leaves out, but it must name one.
        written = [field for field in fields if field[1] not in ("0", "0.0f")] or fields[:1]
        places = [
            "TG_NULL" if value is None else self.where_is(value, self.plan.address(entry, value, number), skipped)
            for value, skipped in call.operands
        ]
        arguments = (signature.arguments.name, *(f".{name} = {value}" for name, value in written))
        return Run(self.describe(entry, number, k), "TG_RUN", arguments, (f"tg_{signature.name}", *places))


def _declared(arguments: tuple[str, ...], name: str) -> c.Call:
    c_type, *fields = arguments
    return c.Call("ARGS", (c_type, name, *fields))
