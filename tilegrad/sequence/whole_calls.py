"""What the replay knows of kernels that compute where their operands live."""

from __future__ import annotations

from tilegrad.ir.listing import SCRATCH, Begin, ListedNest, Place, box_size
from tilegrad.ir.nest import Access, Operand, row_major_strides
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView
from tilegrad.sequence.bytes_of import do_meet, placed
from tilegrad.sequence.contents import UNDER_WAY, Readers, View
from tilegrad.sequence.values import OUTSIDE, ValueReplay


class WholeReplay(ValueReplay):
    """The part of a replay that is about such calls."""

    def home_views(self, operand: Operand, place: Place) -> tuple[View, Readers]:
        size = operand.element_bytes
        sizes = (*(r.size for r in place.box), size)
        strides = (*(stride * size for stride in row_major_strides(operand.shape)), 1)
        memory = self.memories.get(place.region)
        found = None if memory is None or place.region == SCRATCH else memory.views(place.offset, sizes, strides)
        if found is None or place.region == OUTSIDE:
            raise self.error(f"'{operand.name}' is at {place.region}+{place.offset}, where no core finds it")
        return found

    def begin_whole(self, listed: ListedNest, event: Begin) -> None:
        for operand, place in zip(listed.nest.operands, event.places, strict=True):
            if place is not None and box_size(place.box):
                self.expect_at_home(event.nest, operand, place.box, place.region, place.offset)
        for operand, place, _ in placed(listed.nest, event, Access.READ):
            wanted = self.contents(event.nest, operand, place.box)
            self.expect_contents(self.home_views(operand, place)[0], wanted, f"'{operand.name}'")
        self.expect_apart(listed, event)
        for operand, place, _ in placed(listed.nest, event, Access.READ):
            readers = self.home_views(operand, place)[1]
            readers += 1
        for operand, place, _ in placed(listed.nest, event, Access.WRITE):
            self.home_views(operand, place)[0][...] = UNDER_WAY

    def end_whole(self, listed: ListedNest, begun: Begin) -> None:
        for operand, place, _ in placed(listed.nest, begun, Access.READ):
            readers = self.home_views(operand, place)[1]
            readers -= 1
        for operand, place, _ in placed(listed.nest, begun, Access.WRITE):
            content, _ = self.home_views(operand, place)
            content[...] = self.contents(begun.nest, operand, place.box).reshape(content.shape)

    def expect_apart(self, listed: ListedNest, event: Begin) -> None:
        """Results are not where something else is needed, unless the operator may work in place."""
        written: list[tuple[Operand, Place]] = []
        for operand, place, _ in placed(listed.nest, event, Access.WRITE):
            self.expect_writable(*self.home_views(operand, place), f"'{operand.name}'")
            for other, other_place in written:
                if do_meet(operand, place, other, other_place):
                    raise self.error(f"'{operand.name}' and '{other.name}' overlap")
            written.append((operand, place))
            for source, source_place, _ in placed(listed.nest, event, Access.READ):
                if do_meet(operand, place, source, source_place):
                    self.check_in_place(listed, operand, place, source, source_place)

    def check_in_place(
        self, listed: ListedNest, result: Operand, place: Place, source: Operand, source_place: Place
    ) -> None:
        node = self.schedule.launches[listed.launch].node
        allowed = registry.get(node.op).in_place(NodeView(node, self.schedule.graph.types))
        is_allowed = any(
            (node.outputs[o], node.inputs[i]) == (result.value, source.value)
            for o, i in allowed
            if o < len(node.outputs) and i < len(node.inputs)
        )
        if not is_allowed or place.offset != source_place.offset:
            raise self.error(f"'{result.name}' overlaps '{source.name}', which may not be in place")
