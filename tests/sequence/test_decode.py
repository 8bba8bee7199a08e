"""The words of generated C say what is listed: read back by the runtime's rules, they are the same events."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.schedule.programs import KIB, compiled_for, siracusa
from tests.sequence.decode import Machine
from tests.sequence.emitted_words import constants, emitted, flipped, layout, named_words
from tests.sequence.listed_actions import difference, listed_actions
from tests.sequence.test_trace import odd_engine
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.targets.base import Target

DOUBLE, SINGLE = ScheduleOptions(buffering="double"), ScheduleOptions(buffering="single")
FROM_L3 = ScheduleOptions(buffering="double", home="L3")
UNTILED = ScheduleOptions(is_tiled=False, home="L3")
FUSED = ScheduleOptions(fuses_update=True)


@pytest.mark.parametrize(
    ("name", "target", "options"),
    [
        ("odd_cnn", siracusa(4 * KIB), FROM_L3),
        ("odd_cnn", odd_engine(siracusa(4 * KIB)), SINGLE),
        ("odd_cnn", siracusa(), UNTILED),
        ("attention", siracusa(2 * KIB), DOUBLE),
        ("attention", odd_engine(siracusa(2 * KIB, cores=1)), ScheduleOptions(home="L3")),
        ("attention", siracusa(16 * KIB), FUSED),
        ("simplemlp", siracusa(), UNTILED),
        ("simplemlp", siracusa(32 * KIB), ScheduleOptions()),
        pytest.param("dscnn", siracusa(), FUSED, marks=pytest.mark.slow),
        pytest.param("cct_lora", siracusa(), ScheduleOptions(), marks=pytest.mark.slow),
        pytest.param("resnet8", siracusa(64 * KIB), FROM_L3, marks=pytest.mark.slow),
        pytest.param("odd_cnn", siracusa(2 * KIB), FROM_L3, marks=pytest.mark.slow),
    ],
)
def test_words_say_what_is_listed(name: str, target: Target, options: ScheduleOptions, tmp_path: Path) -> None:
    compiled = compiled_for(name, target, options)
    program = emitted(compiled, tmp_path)
    assert set(program.entries) == set(compiled.listing.entries)
    for entry in compiled.listing.entries:
        assert difference(Machine, program, compiled.listing, entry) is None


def test_another_listing_is_not_what_the_words_say(tmp_path: Path) -> None:
    """Each event counts: without one, or with two of them changed places, it is another."""
    compiled = compiled_for("attention", siracusa(16 * KIB), DOUBLE)
    program, listing = emitted(compiled, tmp_path), compiled.listing
    own = listing.entries["step"]
    for i in range(0, len(own.events), 7):
        fewer = replace(own, events=own.events[:i] + own.events[i + 1 :])
        assert difference(Machine, program, replace(listing, entries={"step": fewer}), "step") is not None


# Words that every flip of a bit shows in, wherever they are.
ALWAYS = {"argument", "tg_call.slots", "tg_call.moves", "tg_call.late", "tg_nest.operand_count", "tg_nest.kernel"}
ALWAYS |= {"tg_nest.loop_count", "tg_nest.args"}
# Made anew in each step, so that what stands there at first is never looked at.
NEVER = {"tg_dim.size"}


@pytest.mark.timeout(120)
def test_a_flipped_word_is_noticed(tmp_path: Path) -> None:
    """Some words do not matter where they are: what only simple steps need, or only others; what comes behind the last
    call; whether to wait where nothing is under way. But each field of each record matters somewhere."""
    random = np.random.default_rng(1)
    tried: Counter[str] = Counter()
    noticed: Counter[str] = Counter()
    ways = (
        ("attention", siracusa(2 * KIB), FROM_L3),
        ("odd_cnn", siracusa(4 * KIB), DOUBLE),
        ("odd_cnn", odd_engine(siracusa(4 * KIB)), SINGLE),
    )
    for number, (name, target, options) in enumerate(ways):
        compiled = compiled_for(name, target, options)
        folder = tmp_path / str(number)
        folder.mkdir()
        program = emitted(compiled, folder)
        wanted = list(listed_actions(compiled.listing, "infer"))
        places: dict[str, list[int]] = {}
        for at, field in named_words(program, "infer").items():
            places.setdefault(field, []).append(at)
        for field, own in places.items():
            for count, at in enumerate(random.permutation(own).tolist()):
                if (count >= 4 and noticed[field]) or count >= 40:
                    break
                bit = int(random.integers(5))
                changed = flipped(program, at, 1 << bit)
                found = difference(Machine, changed, compiled.listing, "infer", wanted=wanted)
                tried[field] += 1
                noticed[field] += found is not None
                assert found is not None or field not in ALWAYS, (field, at, bit)
    records = ("tg_nest", "tg_operand", "tg_loop", "tg_dim", "tg_field", "tg_call")
    fields = {f"{record}.{field}" for record in records for field, _ in layout(record)}
    assert {*fields, "home", "move", "argument"} == set(tried)
    assert {field for field in tried if not noticed[field]} == NEVER


def test_the_layout_is_that_of_the_header() -> None:
    assert [field for field, _ in layout("tg_field")] == ["word", "kind", "of", "by"]
    assert dict(layout("tg_operand"))["scratch"] is False and dict(layout("tg_operand"))["access"] is True
    assert constants()["TG_LAST"] == 7 and constants()["TG_ABSENT"] == 0xFFFFFFFF
