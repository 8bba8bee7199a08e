"""The files of a bare-metal image: the chip's runtime as it is, and what it must know of the model, as C.

The image draws its weights and samples from the seed. A tensor of a zoo model is drawn on the chip if drawing it here
gives exactly the bits of the compiled program. Every other tensor whose elements are not all the same is stored in the
image: where the state lies, or, if its home is L3, where the arena will be, as far as that has room. What is left lies
in L3 from the start: a loader writes it there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilegrad import zoo
from tilegrad.codegen import c
from tilegrad.codegen.image import initial_bytes
from tilegrad.codegen.interface import c_string, entry_ports
from tilegrad.compiled import Compiled
from tilegrad.data.batches import PATTERNS_WITHOUT_CLASSES, SampleSpec
from tilegrad.data.samples import sample_spec
from tilegrad.devices.siracusa_ports import is_ported, ported_samples, ports_source
from tilegrad.errors import DoesNotFit, UserError
from tilegrad.frontend import SourceKind
from tilegrad.ir.plan import Address, Plan
from tilegrad.losses import parse
from tilegrad.ops.kernels import RUNTIME_FOLDER
from tilegrad.targets.base import L2, TARGETS_FOLDER
from tilegrad.zoo.builder import RUNNING_VARIANCE_MINIMUM, Fill

CHIP_FOLDER = TARGETS_FOLDER / "siracusa" / "chip"
FNV_START, FNV_PRIME = 2166136261, 16777619


@dataclass(frozen=True)
class Expected:
    """What a run must give: the bits of each mini-batch's loss, and the hash of the trained weights."""

    loss_bits: tuple[int, ...]
    weights_hash: int


@dataclass(frozen=True)
class _Row:
    """How tensor `index` gets its initial value: `fill` in C, the random stream, and a word that depends on it."""

    index: int
    fill: str
    stream: int
    word: int

    def __str__(self) -> str:
        return f"{{{self.index}, {self.fill}, {self.stream}, 0x{self.word:08x}u}}"


def float_bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def weights_hash(arrays: Iterable[np.ndarray]) -> int:  # type: ignore[type-arg]
    """FNV-1a over the words of the trained parameters, as the image computes it."""
    so_far = FNV_START
    for array in arrays:
        for word in np.ascontiguousarray(array).view(np.uint32).ravel().tolist():
            so_far = (so_far ^ word) * FNV_PRIME & 0xFFFFFFFF
    return so_far


def image_files(compiled: Compiled, steps: int, expected: Expected | None) -> dict[str, bytes]:
    """What the image has beyond the C project, by path."""
    if steps < 1:
        raise UserError("the number of steps cannot be used", stage="image", expected="1 or more", got=str(steps))
    initial = _initial(compiled)
    texts = {
        "chip/image.h": _header(compiled, steps),
        "chip/image.c": _source(compiled, steps, initial.rows, expected),
        **({"chip/ports.c": ports_source(compiled)} if is_ported(compiled) else {}),
        "chip/stored.S": _stored_sections(initial),
        "kernels/tg_random.h": (RUNTIME_FOLDER / "tg_random.h").read_text(encoding="utf-8"),
    }
    files = {f"chip/{path.name}": path.read_bytes() for path in sorted(CHIP_FOLDER.iterdir()) if path.is_file()}
    files |= {name: text.encode() for name, text in texts.items()}
    files |= {f"chip/{name}.bin": stored for name, stored in initial.stored.items() if stored}
    return dict(sorted(files.items()))


@dataclass(frozen=True)
class _Initial:
    """How the state begins: a row for each tensor that the program fills, and the bytes that the image holds.

    `stored` has what lies in the state from the start, what lies in the arena until it is written to L3, and what lies
    in L3 from the start.
    """

    rows: tuple[_Row, ...]
    stored: Mapping[str, bytes]


def _initial(compiled: Compiled) -> _Initial:
    is_zoo = compiled.model.kind is SourceKind.ZOO
    drawn = {t.name: (i, t) for i, t in enumerate(zoo.initial_tensors(compiled.model.name))} if is_zoo else {}
    seed = compiled.program.recipe.seed
    rows: list[_Row] = []
    in_state, in_arena, in_l3 = bytearray(), bytearray(), bytearray()
    for index, tensor in enumerate(compiled.program.state):
        content = initial_bytes(tensor)
        words = np.frombuffer(content + bytes(-len(content) % 4), np.uint32)
        stream, recipe = drawn.get(tensor.name, (0, None))
        address = compiled.plan.state_addresses[tensor.name]
        if (words == words[:1]).all():
            rows.append(_Row(index, "FILL_WORD", 0, int(words[0]) if len(words) else 0))
        elif recipe is not None and recipe.values(seed, stream).astype("<f4").tobytes() == content:
            is_signed = recipe.fill is Fill.SIGNED
            word = float_bits(recipe.bound if is_signed else RUNNING_VARIANCE_MINIMUM)
            rows.append(_Row(index, "FILL_SIGNED" if is_signed else "FILL_UNIT", stream, word))
        elif address.region == "l3" and len(in_arena) + len(content) > compiled.plan.arena_bytes:
            in_l3 += bytes(max(0, address.offset + len(content) - len(in_l3)))
            in_l3[address.offset : address.offset + len(content)] = content
        elif address.region == "l3":
            rows.append(_Row(index, "FILL_STORED", 0, len(in_arena)))
            in_arena += content + bytes(-len(content) % 8)
        else:
            in_state += bytes(max(0, address.offset + len(content) - len(in_state)))
            in_state[address.offset : address.offset + len(content)] = content
    return _Initial(tuple(rows), {"state": bytes(in_state), "arena": bytes(in_arena), "l3": bytes(in_l3)})


def _address(plan: Plan, entry: str, value: str, is_output: bool) -> Address:
    return plan.output_address(entry, value) if is_output else plan.input_address(entry, value)


def _pointer(plan: Plan, entry: str, value: str, *, is_output: bool = False) -> str:
    """What an entry is given: where a value is, so that nothing is moved."""
    address = _address(plan, entry, value, is_output)
    if address.region == "l3":
        return "((void *)already_in_l3)"
    return f"((void *)((m)->{address.region} + {address.offset}))"


def _place(plan: Plan, entry: str, value: str) -> str:
    """Where the program makes a value."""
    address = _address(plan, entry, value, is_output=False)
    if address.region == "l3":
        return f"((void)(m), (image_place){{NULL, {address.offset}u}})"
    return f"((image_place){{(m)->{address.region} + {address.offset}, 0}})"


def _expect_near(plan: Plan, values: Sequence[str]) -> None:
    """Targets that are not the input, and all of several tensors, are made in L2."""
    for value in values:
        if plan.input_address("step", value).region == "l3":
            raise DoesNotFit(
                f"'{value}' of the step entry does not fit into L2, where an image makes it",
                stage="image",
                expected=f"at most {plan.memory[L2].capacity_bytes} bytes, with what the operator that reads it needs",
                got=f"{plan.schedule.entries['step'].types[value].size_bytes} bytes",
                hint="sim:siracusa runs it",
            )


def _header(compiled: Compiled, steps: int) -> str:
    program, plan = compiled.program, compiled.plan
    step, infer = program.entries["step"], program.entries["infer"]
    places = {value: _pointer(plan, "step", value) for value in step.inputs}
    inferring = {value: _pointer(plan, "infer", value) for value in infer.inputs}
    results = [_pointer(plan, "infer", o.value, is_output=True) for o in entry_ports(plan, "infer")[1]]
    step_call = c.Call("return tg_step", ("m", *places.values(), "loss"))
    infer_call = c.Call("return tg_infer", ("m", *inferring.values(), *results))
    calls = c.print_file(
        [
            c.Function("static inline tg_status", "image_step", ("tg_model *m", "float *loss"), (step_call,)),
            c.Function("static inline tg_status", "image_infer", ("tg_model *m",), (infer_call,)),
        ]
    )
    if is_ported(compiled):
        _expect_near(plan, step.inputs)
        samples = ported_samples(compiled, places, inferring)
    else:
        samples = _plain_samples(compiled)
    return f"""/* What this image trains and how. Generated by tilegrad. */
#ifndef TG_CHIP_IMAGE_H
#define TG_CHIP_IMAGE_H
#include "model.h"
#include "program.h"

#define IMAGE_MODEL "{c_string(program.name)}"
#define IMAGE_SEED {program.recipe.seed}u
#define IMAGE_UPDATES {steps}
#define IMAGE_ACCUMULATE {program.recipe.accumulate}
#define IMAGE_BATCH {program.recipe.batch}

{samples}{calls}
/* Where a tensor's initial value comes from: one word for all, a uniform number times `word`, a uniform number plus
 * `word`, or bytes in the image. */
enum {{ FILL_WORD, FILL_SIGNED, FILL_UNIT, FILL_STORED }};
typedef struct {{
    uint32_t index, fill, stream, word;
}} image_tensor;
extern const image_tensor image_tensors[];
extern const uint32_t image_tensor_count;

/* The trained tensors, in initializer order. */
extern const uint32_t image_trained[];
extern const uint32_t image_trained_count;

/* What the simulator gave, if it was asked: the bits of each loss, and the hash of the trained weights. */
extern const uint32_t image_is_checked, image_weights, image_losses[];

#endif
"""


def _plain_samples(compiled: Compiled) -> str:
    """Of a model with one input and one target."""
    program, plan, spec = compiled.program, compiled.plan, sample_spec(compiled)
    x, y = program.entries["infer"].inputs[0], program.target_input
    if not spec.is_reconstruction:
        _expect_near(plan, (y,))
    return f"""/* A sample: half noise, half the pattern of its label, or tokens below a vocabulary. */
#define IMAGE_INPUT_TYPE {spec.input_dtype.c_name}
#define IMAGE_INPUT_SIZE {int(np.prod(spec.input_shape, dtype=np.int64))}
#define IMAGE_VOCABULARY {0 if spec.input_dtype.is_float else spec.vocabulary or 2}
#define IMAGE_PATTERNS {spec.classes or PATTERNS_WITHOUT_CLASSES}
#define TARGETS_LABEL 0
#define TARGETS_INPUT 1
#define TARGETS_BINARY 2
#define TARGETS_SIGNED 3
#define IMAGE_TARGETS {_targets(spec)}
#define IMAGE_TARGET_TYPE {program.entries["step"].types[y].dtype.c_name}
#define IMAGE_TARGET_SIZE {int(np.prod(spec.target_shape, dtype=np.int64))}

/* Samples are made where the entries look for them, and results stay where they are. */
#define IMAGE_INPUT(m) {_place(plan, "step", x)}
#define IMAGE_INFER_INPUT(m) {_place(plan, "infer", x)}
#define IMAGE_TARGET(m) {_place(plan, "step", y)}
"""


def _targets(spec: SampleSpec) -> str:
    if spec.has_labels:
        return "TARGETS_LABEL"
    if spec.is_reconstruction:
        return "TARGETS_INPUT"
    kind = parse(spec.loss).targets[0].kind
    assert kind is not None
    return f"TARGETS_{kind.targets.name}"


def _table(declaration: str, items: Sequence[object]) -> str:
    """At least one item: C has no empty arrays."""
    body = ",\n    ".join(map(str, items or ["{0}" if "image_tensor " in declaration else "0"]))
    return f"/* clang-format off */\nconst {declaration}[] = {{\n    {body},\n}};\n/* clang-format on */\n"


def _source(compiled: Compiled, steps: int, rows: Sequence[_Row], expected: Expected | None) -> str:
    program = compiled.program
    positions = {tensor.name: i for i, tensor in enumerate(program.state)}
    trained = [positions[tensor.name] for tensor in program.trainable]
    count = steps * program.recipe.accumulate
    losses = [f"0x{bits:08x}u" for bits in expected.loss_bits] if expected is not None else [0] * count
    if len(losses) != count:
        raise UserError(
            "the expected losses are of another run", stage="image", expected=str(count), got=str(len(losses))
        )
    return (
        '/* Tables of this image. Generated by tilegrad. */\n#include "image.h"\n\n'
        + _table("image_tensor image_tensors", rows)
        + f"const uint32_t image_tensor_count = {len(rows)};\n\n"
        + _table("uint32_t image_trained", trained)
        + f"const uint32_t image_trained_count = {len(trained)};\n\n"
        + f"const uint32_t image_is_checked = {int(expected is not None)};\n"
        + f"const uint32_t image_weights = 0x{0 if expected is None else expected.weights_hash:08x}u;\n"
        + _table("uint32_t image_losses", losses)
    )


def _stored_sections(initial: _Initial) -> str:
    """Names the bytes by their hash, so that a cached object is theirs."""
    text = "# Initial values that nothing can generate.\n"
    for name, stored in initial.stored.items():
        if stored:
            text += f'    .section .tg_stored_{name},"a"\n'
            text += f'    .incbin "chip/{name}.bin" # {hashlib.sha256(stored).hexdigest()}\n'
    return text
