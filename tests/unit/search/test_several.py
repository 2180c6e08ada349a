"""Searches for large values, for several at once, and in storages that processes share."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.core.errors import InputError, StudyError
from autotune.search import Searcher
from autotune.search.goals import Goals, front
from autotune.space import SearchSpace

SPACE = SearchSpace({"x": list(range(21)), "y": list(range(21))})
COSTS = st.integers(0, 3).map(float)


def dominates(one: list[float], other: list[float]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True)) and one != other


@given(st.lists(st.lists(COSTS, min_size=3, max_size=3), max_size=12))
def test_the_front_is_what_nothing_dominates(costs: list[list[float]]) -> None:
    found = front(costs)
    wanted = [each for each in costs if not any(dominates(other, each) for other in costs)]
    assert [costs[at] for at in found] == sorted(wanted)
    assert found == sorted(set(found), key=lambda at: (costs[at], at))


@given(st.lists(st.floats(-1e300, 1e300), min_size=2, max_size=2, unique=True))
def test_a_larger_value_never_costs_more(values: list[float]) -> None:
    goals = Goals.of("maximize", ())
    low, high = (goals.costs([value])[0] for value in sorted(values))
    assert low >= high > 0
    assert low > high or abs(values[0] - values[1]) < 1e-9 * max(1, *map(abs, values))


def test_large_values_are_looked_for_where_they_are_wanted() -> None:
    """As fast as small ones are where those are wanted: `auto` finds a peak of 441 points."""
    found = []
    for seed in range(5):
        searcher = Searcher(SPACE, seed=seed, direction="maximize")
        for _ in range(40):
            point = searcher.ask()
            assert point is not None
            searcher.tell(point, 100 / (1 + abs(point["x"] - 6) + abs(point["y"] - 15)))
        assert searcher.best is not None
        found.append(searcher.best[1])
    assert statistics.median(found) == 100


def tradeoff(x: int, y: int) -> dict[str, float]:
    """Nothing is better in both than `y` 15; along it, `x` trades seconds for a rate."""
    off = 1 + abs(y - 15) / 2
    return {"seconds": off * (1 + x / 4), "rate": 100 * (1 + x / 4) / off}


def on_front(sampler: str, seed: int) -> int:
    searcher = Searcher(
        SPACE, sampler, seed, objectives={"seconds": "minimize", "rate": "maximize"}
    )
    for _ in range(50):
        point = searcher.ask()
        assert point is not None
        searcher.tell(point, tradeoff(point["x"], point["y"]))
    told = [values for _, values in searcher.front]
    assert [each["seconds"] for each in told] == sorted(each["seconds"] for each in told)
    assert searcher.front[0] == searcher.best
    return sum(point["y"] == 15 for point, _ in searcher.front)


def test_several_objectives_are_searched_along_their_front() -> None:
    found = {name: [on_front(name, seed) for seed in range(3)] for name in ("auto", "random")}
    assert statistics.median(found["auto"]) >= 10
    assert statistics.median(found["auto"]) >= 2 * statistics.median(found["random"])


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "exhaustive", "optuna.samplers.TPESampler"])
def test_other_samplers_see_all_objectives(sampler: str) -> None:
    assert on_front(sampler, 0) >= 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"direction": "up"}, "a direction must be one of minimize, maximize"),
        ({"objectives": {"a": "up"}}, "a direction must be one of"),
        ({"objectives": [3]}, "objectives must be names, got 3"),
        ({"objectives": 5}, "objectives must be names, got 5"),
    ],
)
def test_goals_that_are_none_are_refused(arguments: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        Searcher(SPACE, **arguments)  # type: ignore[call-overload]


@pytest.mark.parametrize("value", [1.0, {"a": 1.0}, {"a": 1.0, "b": float("nan")}, [1.0, 2.0]])
def test_values_of_other_names_are_refused_and_may_be_told_again(value: object) -> None:
    searcher = Searcher(SPACE, "random", objectives=["a", "b"])
    point = searcher.ask()
    assert point is not None
    with pytest.raises(InputError, match="told"):
        searcher.tell(point, value)
    searcher.tell(point, {"a": 1, "b": 2})
    assert searcher.best == (point, {"a": 1.0, "b": 2.0})


@pytest.fixture(params=["journal", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str | Path:
    return tmp_path if request.param == "journal" else f"sqlite:///{tmp_path}/studies.db"


SMALL = SearchSpace({"x": list(range(6))})


def test_a_stored_search_goes_on_and_is_shared(storage: str | Path) -> None:
    one = Searcher(SMALL, "random", storage=storage, direction="maximize")
    other = Searcher(SMALL, "random", storage=storage, direction="maximize")
    points = [each.ask() for each in (one, other, one, other)]
    assert len(set(points)) == 4
    for searcher, point, value in zip((one, other, one), points, (1.0, 3.0, 2.0), strict=False):
        assert point is not None
        searcher.tell(point, value)
    assert one.best == other.best == (points[1], 3.0)
    one.close()
    other.close()  # and gives up what was not told
    again = Searcher(SMALL, "random", storage=storage, direction="maximize")
    rest = {again.ask() for _ in range(4)}
    assert rest == set(SMALL) - set(points[:3]) | {None}
    again.close()
    with pytest.raises(StudyError, match="holds trials, and resume is False"):
        Searcher(SMALL, storage=storage, direction="maximize", resume=False)
    with pytest.raises(StudyError, match="another space, or of other objectives"):
        Searcher(SMALL, storage=storage, objectives={"": "minimize"})
    with pytest.raises(StudyError, match="another space, or of other objectives"):
        Searcher(SearchSpace({"x": [1, 2]}), storage=storage, direction="maximize")
    Searcher(SMALL, storage=storage, study="another").close()


def test_storages_and_studies_that_are_none_are_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="storage must be the path of a file or a folder, got 5"):
        Searcher(SMALL, storage=5)  # type: ignore[call-overload]
    with pytest.raises(StudyError, match="a study's name must be text in UTF-8, got 5"):
        Searcher(SMALL, storage=tmp_path, study=5)  # type: ignore[call-overload]


def test_the_front_of_a_stored_search_is_all_workers(storage: str | Path) -> None:
    goals = {"a": "minimize", "b": "maximize"}
    one, other = (
        Searcher(SMALL, "exhaustive", storage=storage, objectives=goals)  # type: ignore[arg-type]
        for _ in range(2)
    )
    values = [(1.0, 1.0), (2.0, 2.0), (3.0, 1.5)]
    for searcher, (a, b) in zip((one, other, one), values, strict=True):
        point = searcher.ask()
        assert point is not None
        searcher.tell(point, {"a": a, "b": b})
    assert one.front == other.front
    assert [told for _, told in one.front] == [{"a": 1.0, "b": 1.0}, {"a": 2.0, "b": 2.0}]
    one.close()
    other.close()


def test_names_tell_which_value_is_which_whatever_their_order(storage: str | Path) -> None:
    goals = {"t": "minimize", "r": "maximize"}
    turned = dict(reversed(goals.items()))
    told = [{"t": 1.0, "r": 50.0}, {"t": 2.0, "r": 100.0}, {"t": 3.0, "r": 10.0}]
    for objectives, values in zip((goals, turned, goals), told, strict=True):
        searcher = Searcher(SMALL, "random", storage=storage, objectives=objectives)  # type: ignore[arg-type]
        point = searcher.ask()
        assert point is not None
        searcher.tell(point, values)
        searcher.close()
    again = Searcher(SMALL, storage=storage, objectives=turned)  # type: ignore[arg-type]
    assert [values for _, values in again.front] == told[:2]
    assert again.best == again.front[0]
    again.close()


ASKS_AND_WAITS = """
import sys
from pathlib import Path
from autotune import Searcher, SearchSpace
place = sys.argv[1] if "://" in sys.argv[1] else Path(sys.argv[1])
searcher = Searcher(SearchSpace({"x": list(range(6))}), "random", storage=place)
print(searcher.ask()["x"], flush=True)
sys.stdin.read()
"""


@contextmanager
def asked_elsewhere(storage: str | Path) -> Iterator[int]:
    """What another process has asked for, which is killed in the end."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", ASKS_AND_WAITS, str(storage)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdout is not None
        yield int(child.stdout.readline())
        child.kill()


def test_what_a_killed_process_asked_for_is_asked_for_again(storage: str | Path) -> None:
    with asked_elsewhere(storage) as asked:
        pass
    searcher = Searcher(SMALL, "random", seed=1, storage=storage)
    point = searcher.ask()
    assert point is not None
    assert point["x"] == asked
    searcher.close()


def test_what_a_killed_process_holds_is_the_last_thing_left(storage: str | Path) -> None:
    with asked_elsewhere(storage) as asked:
        searcher = Searcher(SMALL, "random", seed=1, storage=storage)
        while (point := searcher.ask()) is not None:
            searcher.tell(point, 1.0)
    assert searcher.ask() == {"x": asked}
    assert searcher.ask() is None
    searcher.close()
