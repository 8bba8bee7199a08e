"""The allocator against a brute-force validator, exhaustive search, CP-SAT, and MiniMalloc's hard instances."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.place.validator import Verdict, judge
from tilegrad.errors import UserError
from tilegrad.ir.plan import Buffer
from tilegrad.place import allocate as module
from tilegrad.place import native, restarts
from tilegrad.place.allocate import Progress, allocate, lower_bound, main, read_instance

DATA = Path(__file__).parent / "data" / "minimalloc"
CAPACITY = 1048576


def named(rows: Sequence[tuple[int, int, int]]) -> list[Buffer]:
    """(size, first, last), as buffers."""
    return [Buffer(f"b{i}", size, first, last) for i, (size, first, last) in enumerate(rows)]


def instances(
    largest: int, moments: int = 12, sizes: int = 8, smallest_size: int = 0
) -> st.SearchStrategy[list[Buffer]]:
    row = st.tuples(st.integers(smallest_size, sizes), st.integers(-1, moments), st.integers(0, moments)).map(
        lambda r: (16 * r[0], r[1], r[1] + r[2])
    )
    return st.lists(row, min_size=0, max_size=largest).map(named)


def stack_like(count: int) -> list[Buffer]:
    """A forward pass whose activations are read again in reverse order, and gradients that live for two moments."""
    forward = [(16 * (3 + i * 7 % 5), i, 2 * count - i) for i in range(count)]
    backward = [(16 * (3 + i * 7 % 5), 2 * count - i, 2 * count - i + 1) for i in range(count)]
    return named(forward + backward)


def nested(count: int) -> list[Buffer]:
    return named([(16 * (1 + i % 4), i, 2 * count - i) for i in range(count)])


def random_instance(count: int, seed: int) -> list[Buffer]:
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        first = draw.randrange(count)
        rows.append((64 * draw.randrange(1, 50), first, first + draw.randrange(1 + count // 4)))
    return named(rows)


def assert_good(buffers: Sequence[Buffer], capacity_bytes: int | None = None) -> int:
    allocation = allocate(buffers, capacity_bytes=capacity_bytes)
    assert judge(buffers, allocation.offsets, allocation.size_bytes) is Verdict.GOOD
    assert allocation.size_bytes >= lower_bound(buffers)
    assert allocate(buffers, capacity_bytes=capacity_bytes) == allocation
    return allocation.size_bytes


def exhaustive_optimum(buffers: Sequence[Buffer]) -> int:
    """Some order of placing each buffer as low as possible is optimal: all are tried."""
    best = sum(b.size_bytes for b in buffers)
    for order in itertools.permutations(buffers):
        tops: list[tuple[Buffer, int]] = []
        for buffer in order:
            together = [(o, b.size_bytes) for b, o in tops if b.first <= buffer.last and buffer.first <= b.last]
            for offset in sorted({0, *(o + size for o, size in together)}):
                if all(offset + buffer.size_bytes <= o or o + size <= offset for o, size in together):
                    tops.append((buffer, offset))
                    break
        best = min(best, max((o + b.size_bytes for b, o in tops), default=0))
    return best


def cp_sat_optimum(buffers: Sequence[Buffer]) -> int:
    cp_model = pytest.importorskip("ortools.sat.python.cp_model", reason="OR-tools is not installed")
    model = cp_model.CpModel()
    total = sum(b.size_bytes for b in buffers)
    height = model.new_int_var(0, total, "height")
    moments, bytes_ = [], []
    for b in buffers:
        offset = model.new_int_var(0, total, b.name)
        model.add(offset + b.size_bytes <= height)
        moments.append(model.new_fixed_size_interval_var(b.first, b.last - b.first + 1, b.name))
        bytes_.append(model.new_fixed_size_interval_var(offset, b.size_bytes, b.name))
    model.add_no_overlap_2d(moments, bytes_)
    model.minimize(height)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    return int(solver.objective_value)


def test_the_validator_tells_failures_apart() -> None:
    one, two = Buffer("one", 8, 0, 3), Buffer("two", 8, 3, 5)
    assert judge([one, two], {"one": 0, "two": 8}, 16) is Verdict.GOOD
    assert judge([one, two], {"one": 0}, 16) is Verdict.MISSING
    assert judge([one, two], {"one": -8, "two": 8}, 16) is Verdict.NEGATIVE
    assert judge([one, two], {"one": 0, "two": 9}, 16) is Verdict.OUT_OF_CAPACITY
    assert judge([one, two], {"one": 0, "two": 7}, 16) is Verdict.OVERLAP
    assert judge([one, replace(two, first=4)], {"one": 0, "two": 0}, 8) is Verdict.GOOD
    assert judge([one, replace(two, size_bytes=0)], {"one": 0, "two": 4}, 8) is Verdict.GOOD


def test_nothing_to_allocate() -> None:
    assert allocate([]).size_bytes == 0
    assert allocate([Buffer("empty", 0, 0, 4)]).offsets == {"empty": 0}
    assert allocate([Buffer("only", 48, 2, 2)]) == module.Allocation({"only": 0}, 48)


@settings(max_examples=150)
@given(instances(14))
def test_allocations_are_good(buffers: list[Buffer]) -> None:
    assert_good(buffers)


@settings(max_examples=60)
@given(instances(40, moments=30), st.integers(0, 64))
def test_allocations_with_a_capacity_are_good(buffers: list[Buffer], extra: int) -> None:
    assert_good(buffers, lower_bound(buffers) + 16 * extra)


@pytest.mark.parametrize("count", [1, 2, 7, 30, 200])
def test_stacks_and_nests_reach_the_bound(count: int) -> None:
    for buffers in (stack_like(count), nested(count)):
        assert assert_good(buffers) == lower_bound(buffers)


@settings(max_examples=60)
@given(instances(6, moments=6, smallest_size=1))
def test_small_allocations_are_optimal(buffers: list[Buffer]) -> None:
    optimum = exhaustive_optimum(buffers)
    assert assert_good(buffers) == optimum
    if buffers:
        assert restarts.search(buffers, optimum - 1, 10_000) is None


@settings(max_examples=20)
@given(instances(16, moments=8, sizes=20, smallest_size=1))
def test_medium_allocations_are_as_small_as_cp_sats(buffers: list[Buffer]) -> None:
    assert assert_good(buffers) == cp_sat_optimum(buffers)


@settings(max_examples=100)
@given(instances(6, moments=5, sizes=6, smallest_size=1), st.integers(0, 3))
def test_the_search_finds_whatever_exists(buffers: list[Buffer], below: int) -> None:
    """Each inference must be sound: whatever the order, it finds the optimum, and proves that less is impossible."""
    capacity = max(exhaustive_optimum(buffers) - 16 * below, 0)
    count, ranges = restarts.find_sections(buffers)
    for order in itertools.islice(itertools.permutations(range(len(buffers))), 0, None, 37):
        attempt = native.search(
            [ranges[i] for i in order], [buffers[i].size_bytes for i in order], count, capacity, 100_000
        )
        assert (attempt.offsets is not None) == (below == 0 or not buffers)
        assert attempt.is_proof == (attempt.offsets is None)


@pytest.mark.parametrize(("count", "seed"), [(60, 0), (120, 1), (250, 2), (400, 3)])
def test_ordinary_sizes_stay_near_the_bound(count: int, seed: int) -> None:
    buffers = random_instance(count, seed)
    assert assert_good(buffers) <= 1.05 * lower_bound(buffers)


def test_work_is_bounded_whatever_the_numbers() -> None:
    """Sizes of gigabytes and times far apart cost what small ones do."""
    small = random_instance(80, 5)
    large = [replace(b, size_bytes=b.size_bytes << 24, first=b.first * 10**9, last=b.last * 10**9) for b in small]
    assert allocate(large).size_bytes == allocate(small).size_bytes << 24


def test_without_a_compiler_allocations_are_good_but_may_be_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library", lambda: None)
    for seed in range(3):
        buffers = random_instance(60, seed)
        assert assert_good(buffers) <= 1.3 * lower_bound(buffers)


def test_an_impossible_capacity_gives_the_best_found() -> None:
    buffers = random_instance(40, 9)
    allocation = allocate(buffers, capacity_bytes=lower_bound(buffers) - 1)
    assert judge(buffers, allocation.offsets, allocation.size_bytes) is Verdict.GOOD


@pytest.mark.slow
@pytest.mark.parametrize("name", ["A", "C", "E", "G", "I", "K"])
def test_hard_instances_fit(name: str) -> None:
    buffers = read_instance(DATA / f"{name}.{CAPACITY}.csv")
    seen: list[Progress] = []
    allocation = allocate(buffers, capacity_bytes=CAPACITY, progress=seen.append)
    assert judge(_compressed(buffers), allocation.offsets, CAPACITY) is Verdict.GOOD
    assert seen[0].gap > seen[-1].gap >= 0.0
    assert seen[-1].best_bytes == allocation.size_bytes
    assert all(p.bound_bytes == lower_bound(buffers) for p in seen)


def _compressed(buffers: Sequence[Buffer]) -> list[Buffer]:
    """The same instance with moments numbered 0, 1, 2, …: the validator walks through every one of them."""
    moments = {time: i for i, time in enumerate(sorted({t for b in buffers for t in (b.first, b.last)}))}
    return [replace(b, first=moments[b.first], last=moments[b.last]) for b in buffers]


def test_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([str(DATA / "example.12.csv"), "--capacity", "12"]) == 0
    text = capsys.readouterr().out
    assert "gap 0.00%" in text and "12 bytes for 5 buffers" in text
    assert main([str(DATA / "example.12.csv"), "--capacity", "11"]) == 1
    assert "does not fit" in capsys.readouterr().out
    wrong = tmp_path / "wrong.csv"
    for content in ("id,lower\n1,2\n", "id,lower,upper,size\na,0,1,x\n", "id,lower,upper,size\na,3,3,4\n"):
        wrong.write_text(content)
        assert main([str(wrong)]) == 2
        assert str(wrong) in capsys.readouterr().err
    assert main([str(tmp_path / "absent.csv")]) == 2


def test_wrong_files_are_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read"):
        read_instance(tmp_path / "absent.csv")
