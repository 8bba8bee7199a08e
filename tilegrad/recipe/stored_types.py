"""What training keeps in two bytes a number: `--store`. A part of the recipe, since the bits depend on it.

Computation stays in float32. A value is rounded once, when it is kept (docs/store.md).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from tilegrad.errors import UserError

TYPES = ("f32", "bf16", "fp16")
FORM = "TYPE or activations=TYPE,optimizer=TYPE with TYPE " + "|".join(TYPES)


@dataclass(frozen=True)
class Stored:
    """`activations` are what the forward pass leaves for the backward pass, `optimizer` is the optimizer's state.

    `is_wish` says that one type was given for all there is: what a program does not have is then left out.
    """

    activations: str = "f32"
    optimizer: str = "f32"
    is_wish: bool = False

    def __post_init__(self) -> None:
        for what in ("activations", "optimizer"):
            kept_as = getattr(self, what)
            if kept_as not in TYPES:
                raise _refused("there is no such storage type", f"{what}={kept_as}")

    def for_slots(self, slots: tuple[str, ...], optimizer: str) -> Stored:
        """As an optimizer with these slots can have it: one without refuses to be told how to keep them."""
        if self.optimizer == "f32" or slots:
            return replace(self, is_wish=False)
        if self.is_wish:
            return Stored(self.activations)
        raise UserError(
            f"the optimizer {optimizer} has no state to store",
            stage="recipe",
            expected="one that has, such as momentum or adam",
            got=f"--store {self}",
        )

    @property
    def is_plain(self) -> bool:
        """Everything is float32, as ever."""
        return self.activations == "f32" and self.optimizer == "f32"

    def __str__(self) -> str:
        kept = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "is_wish"}
        return ",".join(f"{what}={kept_as}" for what, kept_as in kept.items() if kept_as != "f32") or "f32"

    @staticmethod
    def parse(text: str) -> Stored:
        """`bf16`, or `activations=bf16,optimizer=fp16`."""
        if text in TYPES:
            return Stored(text, text, is_wish=True)
        kept: dict[str, str] = {}
        for part in text.split(","):
            what, equals, kept_as = (word.strip() for word in part.partition("="))
            if what not in ("activations", "optimizer") or not equals:
                raise _refused("there is no such storage", part.strip() or "nothing")
            if what in kept:
                raise _refused(f"{what} can be stored in one way only", text)
            kept[what] = kept_as
        return Stored(kept.get("activations", "f32"), kept.get("optimizer", "f32"))


def _refused(problem: str, got: str) -> UserError:
    return UserError(problem, stage="options", expected=FORM, got=got)
