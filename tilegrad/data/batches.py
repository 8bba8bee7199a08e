"""Training data: mini-batches of samples, among them an endless synthetic stream that a board can make itself.

Synthetic samples are half noise and half a pattern fixed by the label, so that samples never seen before are learnable
and a falling loss means something. `runtime/tg_random.h` makes the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Protocol, overload

import numpy as np
import numpy.typing as npt

from tilegrad import random
from tilegrad.ir.types import DType
from tilegrad.losses import Targets, Term, parse
from tilegrad.random import Purpose

Array = npt.NDArray[Any]
Batch = tuple[Array, ...]
"""The arrays of a mini-batch, in the order of the step's inputs."""

# How many patterns there are where the model has no classes; part of the bit contract.
PATTERNS_WITHOUT_CLASSES = 10
MADE_AT_A_TIME = 8
"""Mini-batches, where several are asked for."""


class Drawn(Enum):
    """What a synthetic tensor is made of."""

    NOISE = "noise"  # and a pattern of the label; integers below a bound where the tensor holds them
    LABELS = "labels"
    SIGNED = "signed"
    BINARY = "binary"
    INPUT = "input"  # the first input again


@dataclass(frozen=True)
class PortSpec:
    """One tensor of a mini-batch. `shape` is one sample's, or all of it where there is no batch dimension.

    `bound` is above all integers in it, where the model tells; `ignored` is allowed nevertheless. `names` are those of
    its array in a file, the first that is there. `ordinal` tells streams of one purpose apart.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: DType = DType.F32
    drawn: Drawn = Drawn.NOISE
    bound: int | None = None
    ignored: int | None = None
    is_batched: bool = True
    ordinal: int = 0

    @property
    def is_target(self) -> bool:
        return self.drawn is not Drawn.NOISE


@dataclass(frozen=True)
class SampleSpec:
    """What one sample of a model and its loss looks like; shapes are without the batch dimension.

    `target_shape` is the shape of one sample's labels where the loss takes classes (`()` for plain classification),
    and of its targets elsewhere. `vocabulary` bounds integer inputs, where the model tells. `given` are the tensors of
    a mini-batch in order where they are not one input and one target; `named` are these two by more names.
    """

    input_shape: tuple[int, ...]
    loss: str
    target_shape: tuple[int, ...] = ()
    classes: int | None = None
    input_dtype: DType = DType.F32
    vocabulary: int | None = None
    given: tuple[PortSpec, ...] = ()
    named: tuple[PortSpec, ...] = ()

    @property
    def has_labels(self) -> bool:
        return parse(self.loss).has_classes

    @property
    def is_reconstruction(self) -> bool:
        """Whether the input itself serves as the target."""
        targets = parse(self.loss).targets
        reconstructs = all(term.kind is not None and term.kind.reconstructs for term in targets)
        return reconstructs and self.input_dtype.is_float and self.target_shape == self.input_shape

    @property
    def ports(self) -> tuple[PortSpec, ...]:
        """Every tensor of a mini-batch, in order."""
        if self.given or self.named:
            return self.given or self.named
        x = PortSpec(("x",), self.input_shape, self.input_dtype, bound=self.vocabulary)
        return x, PortSpec(("y",), self.target_shape, *target_kind(parse(self.loss).targets[0], self))

    @property
    def label_count(self) -> int:
        """How many patterns there are."""
        if not self.given:
            return self.classes or PATTERNS_WITHOUT_CLASSES
        labels = (port for port in self.given if port.drawn is Drawn.LABELS and not port.ordinal)
        return next((port.bound for port in labels if port.bound), PATTERNS_WITHOUT_CLASSES)


def target_kind(term: Term, spec: SampleSpec) -> tuple[DType, Drawn, int | None, int | None]:
    """Of a target: element type, how it is drawn, bound, what is ignored."""
    if term.has_classes:
        return DType.I64, Drawn.LABELS, spec.classes, term.options.get("ignore")
    if spec.is_reconstruction:
        return DType.F32, Drawn.INPUT, None, None
    return DType.F32, Drawn.BINARY if term.kind and term.kind.targets is Targets.BINARY else Drawn.SIGNED, None, None


class Samples(Protocol):
    """Numbered samples, without end."""

    def take(self, numbers: npt.NDArray[np.int64]) -> Batch:
        """Inputs and targets of the samples with these numbers, along a new first axis where they have a batch."""

    @property
    def batched(self) -> tuple[bool, ...]:
        """Of each array that `take` gives, whether it has that axis."""


@dataclass(frozen=True)
class Batches:
    """Samples in order, cut into mini-batches."""

    samples: Samples
    batch_size: int

    def batch(self, index: int) -> Batch:
        """Mini-batch `index`: samples `index * batch_size` and following."""
        return self.samples.take(np.arange(index * self.batch_size, (index + 1) * self.batch_size, dtype=np.int64))

    def run(self, numbers: range) -> Iterator[Batch]:
        """Mini-batches that follow each other. Several are made at a time, which takes less than one after another."""
        size = self.batch_size
        for start in range(0, len(numbers), MADE_AT_A_TIME):
            some = numbers[start : start + MADE_AT_A_TIME]
            made = self.samples.take(np.arange(some.start * size, some.stop * size, dtype=np.int64))
            for i in range(len(some)):
                yield tuple(
                    array[i * size : (i + 1) * size] if along else array
                    for array, along in zip(made, self.samples.batched, strict=True)
                )

    def first(self, count: int) -> MiniBatches:
        return MiniBatches(self, range(count))


@dataclass(frozen=True)
class MiniBatches(Sequence[Batch]):
    """Some mini-batches in order, each made when it is asked for: any number of them takes the memory of a few."""

    batches: Batches | GivenBatches
    numbers: range

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[Batch]:
        if isinstance(self.batches, Batches) and self.numbers.step == 1:
            return self.batches.run(self.numbers)
        return map(self.batches.batch, self.numbers)

    @overload
    def __getitem__(self, index: int) -> Batch: ...

    @overload
    def __getitem__(self, index: slice) -> MiniBatches: ...

    def __getitem__(self, index: int | slice) -> Batch | MiniBatches:
        if isinstance(index, slice):
            return MiniBatches(self.batches, self.numbers[index])
        return self.batches.batch(self.numbers[index])


@dataclass(frozen=True, eq=False)
class ToldBatches(Sequence[Batch]):
    """Mini-batches that tell `taking` of each that is asked for, by its place and their number: how far somebody is who
    goes through them and knows nothing of progress."""

    batches: Sequence[Batch]
    taking: Callable[[int, int], None]

    def __len__(self) -> int:
        return len(self.batches)

    @overload
    def __getitem__(self, index: int) -> Batch: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Batch]: ...

    def __getitem__(self, index: int | slice) -> Batch | Sequence[Batch]:
        if isinstance(index, int) and 0 <= index < len(self.batches):
            self.taking(index + 1, len(self.batches))
        return self.batches[index]


@dataclass(frozen=True, eq=False)
class StoredSamples:
    """Samples of a file; numbers past the end wrap round. An array without a batch dimension is the same for all."""

    arrays: Batch
    is_batched: tuple[bool, ...] = ()

    @property
    def count(self) -> int:
        return next((len(array) for array, along in zip(self.arrays, self.batched, strict=True) if along), 1)

    @property
    def batched(self) -> tuple[bool, ...]:
        return self.is_batched or (True,) * len(self.arrays)

    def chosen(self, numbers: npt.NDArray[np.int64]) -> StoredSamples:
        """Only these samples."""
        return StoredSamples(self.take(numbers), self.is_batched)

    def take(self, numbers: npt.NDArray[np.int64]) -> Batch:
        batched = self.batched
        wrapped = numbers % self.count
        return tuple(array[wrapped] if along else array for array, along in zip(self.arrays, batched, strict=True))


@dataclass(frozen=True, eq=False)
class GivenBatches:
    """Mini-batches as they came, in order, again and again."""

    made: tuple[Batch, ...]

    def batch(self, index: int) -> Batch:
        return self.made[index % len(self.made)]

    def first(self, count: int) -> MiniBatches:
        return MiniBatches(self, range(count))


@dataclass(frozen=True)
class SyntheticSamples:
    """Samples from the counter-based generator, a function of the seed and the sample's number alone."""

    seed: int
    spec: SampleSpec

    @property
    def batched(self) -> tuple[bool, ...]:
        return tuple(port.is_batched for port in self.spec.ports)

    def take(self, numbers: npt.NDArray[np.int64]) -> Batch:
        made: list[Array] = []
        for port in self.spec.ports:
            drawn = numbers if port.is_batched else np.zeros(1, np.int64)
            array = made[0] if port.drawn is Drawn.INPUT else self._make(port, drawn)
            made.append(array if port.is_batched else array[0])
        return tuple(made)

    def _draw(
        self, port: PortSpec, purpose: Purpose, streams: npt.NDArray[np.int64], shape: tuple[int, ...]
    ) -> random.U32Array:
        size = int(np.prod(shape, dtype=np.int64))
        drawn = random.words(self.seed, random.family(purpose, port.ordinal), streams, size)
        return drawn.reshape(len(streams), *shape)

    def _make(self, port: PortSpec, numbers: npt.NDArray[np.int64]) -> Array:
        if port.drawn is Drawn.LABELS:
            return self._labels(port, numbers, port.shape, port.bound).astype(port.dtype.numpy)
        if port.drawn is Drawn.NOISE:
            return self._input(port, numbers)
        drawn = self._draw(port, Purpose.TARGETS, numbers, port.shape)
        if port.drawn is Drawn.BINARY:
            return random.to_bounded(drawn, 2).astype(np.float32)
        return random.to_signed(drawn)

    def _input(self, port: PortSpec, numbers: npt.NDArray[np.int64]) -> Array:
        noise = self._draw(port, Purpose.DATA, numbers, port.shape)
        if not port.dtype.is_float:
            return random.to_bounded(noise, port.bound or 2).astype(port.dtype.numpy)
        labels = self._labels(replace(port, ordinal=0), numbers, (), self.spec.label_count)
        pattern = self._draw(port, Purpose.PATTERN, labels, port.shape)
        half = np.float32(0.5)
        return half * random.to_signed(noise) + half * random.to_signed(pattern)

    def _labels(
        self, port: PortSpec, numbers: npt.NDArray[np.int64], shape: tuple[int, ...], bound: int | None
    ) -> npt.NDArray[np.int64]:
        drawn = self._draw(port, Purpose.LABELS, numbers, shape)
        return random.to_bounded(drawn, bound or PATTERNS_WITHOUT_CLASSES)


def synthetic(seed: int, spec: SampleSpec, batch_size: int = 1) -> Batches:
    """An endless stream of samples from the seed."""
    return Batches(SyntheticSamples(random.check_seed(seed), spec), batch_size)
