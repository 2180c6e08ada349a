"""Small parts of the core: element types, statistics, suggestions and what a session remembers."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from autotune.core import dtypes, session
from autotune.core.dtypes import (
    DTYPES,
    ELEMENTS,
    USUAL_DTYPES,
    WORDS,
    Dtype,
    dtype_name,
    from_dlpack,
    from_typestr,
)
from autotune.core.errors import MissingDependencyError
from autotune.core.statistics import median_interval
from autotune.core.suggestions import did_you_mean, listed, must_be

ROWS = DTYPES.values()


@pytest.mark.parametrize("row", ROWS, ids=DTYPES)
def test_a_row_agrees_with_numpy(row: Dtype) -> None:
    dtype = row.numpy
    assert (dtype.name, dtype.itemsize) == (row.name, row.itemsize)
    assert dtype.str in row.typestrs
    one = np.ones(1, dtype)
    # Half a unit in the last place of 1 is rounded to even; a little more is rounded up.
    assert (np.array([1 + row.unit_roundoff]).astype(dtype) == one).all()
    assert (np.array([1 + 1.01 * row.unit_roundoff + 2.0**-52]).astype(dtype) > one).all()
    assert np.array([row.smallest]).astype(dtype)[0] > 0
    assert np.array([row.smallest / 2]).astype(dtype)[0] == 0


@pytest.mark.parametrize("row", ELEMENTS.values(), ids=ELEMENTS)
def test_elements_are_numpys_and_are_known_by_what_arrays_say_of_them(row: Dtype) -> None:
    dtype = row.numpy
    assert (dtype.name, dtype.itemsize) == (row.name, row.itemsize)
    assert from_typestr(dtype.str if row.name != "bfloat16" else "<V2") == row.name
    assert from_dlpack(row.dlpack, 8 * row.itemsize, 1) == row.name
    assert np.zeros(1, f"u{struct.calcsize(row.word.letter)}").nbytes == min(row.itemsize, 8)


@pytest.mark.parametrize("row", ROWS, ids=DTYPES)
def test_poison_is_a_nan_of_every_type_of_its_size(row: Dtype) -> None:
    word = row.word
    assert struct.calcsize(word.letter) == row.itemsize
    poison = np.array([word.poison], f"u{row.itemsize}")
    assert np.isnan(poison.view(row.numpy)).all()
    assert (poison != np.array([np.nan], row.numpy).view(poison.dtype)).all()


@pytest.mark.parametrize("row", ROWS, ids=DTYPES)
def test_names_lead_back_to_the_row(row: Dtype) -> None:
    for name in (row.name, row.name.upper(), *row.aliases):
        assert dtype_name(name) == row.name
    assert {from_typestr(each) for each in row.typestrs} == {row.name}
    assert from_dlpack(row.dlpack, 8 * row.itemsize, 1) == row.name
    assert from_dlpack(row.dlpack, 8 * row.itemsize, 4) == f"{row.name} x 4"


@pytest.mark.parametrize("row", ROWS, ids=DTYPES)
def test_products_are_exact_in_the_type_they_are_summed_in(row: Dtype) -> None:
    sums = row.accumulated
    assert sums.accumulation == sums.name
    assert sums.scalar is not None
    assert sums is row or sums.unit_roundoff <= row.unit_roundoff**2 / 2


def test_what_is_not_known_keeps_its_name() -> None:
    assert dtype_name(" Int8 ") == "int8"
    assert from_typestr("<M8[s]") == "<M8[s]"
    assert from_dlpack(3, 32, 1) == "kind 3 of 32"
    assert set(USUAL_DTYPES) == {"float32", "float64"}
    assert {row.itemsize for row in ROWS} <= set(WORDS)


def test_bfloat16_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    dtypes._numpy_dtype.cache_clear()
    with pytest.raises(MissingDependencyError, match="pip install ml_dtypes"):
        _ = DTYPES["bfloat16"].numpy


samples = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=60)


@given(samples)
def test_the_interval_holds_the_sample_median_and_consists_of_samples(
    values: list[float],
) -> None:
    low, high = median_interval(values)
    assert low <= median(values) <= high
    assert {low, high} <= set(values)


@pytest.mark.parametrize("count", [*range(1, 80), 1000, 20_000])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_the_ranks_are_the_binomials(count: int, confidence: float) -> None:
    """The widest interval that leaves no more than the tails, by SciPy's binomial."""
    low, high = median_interval(range(1, count + 1), confidence)
    assert low + high == count + 1
    tail = (1 - confidence) / 2
    if low > 1:
        assert stats.binom.cdf(low - 1, count, 0.5) <= tail * (1 + 1e-9)
    assert stats.binom.cdf(low, count, 0.5) > tail * (1 - 1e-9) or low == count // 2


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    draws = rng.lognormal(size=(4000, 25))  # skewed, as timings are; its median is 1
    hits = sum(low <= 1 <= high for low, high in map(median_interval, draws.tolist()))
    assert hits / len(draws) > 0.94


def test_six_samples_are_the_fewest_that_reach_95_percent() -> None:
    assert median_interval([3, 1, 2]) == (1, 3)
    assert median_interval(range(6)) == (0, 5)
    assert median_interval(range(9)) == (1, 7)


def test_no_samples_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        median_interval([])


@pytest.mark.parametrize("confidence", [0, 1, 95])
def test_confidence_is_a_probability(confidence: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        median_interval([1.0], confidence)


@pytest.mark.parametrize(
    ("given", "known", "end"),
    [
        ("gpus", ["cpu", "gpu"], "; did you mean 'gpu'?"),
        ("GPU", ["cpu", "gpu"], "; did you mean 'gpu'?"),
        ("autotune_cach", ["AUTOTUNE_CACHE"], "; did you mean 'AUTOTUNE_CACHE'?"),
        ("elsewhere", ["cpu", "gpu"], ""),
        (3, ["cpu", "gpu"], ""),
        (None, [], ""),
        (
            "layer_Gelu_bias",
            ["layer_gelu_tanh", "layer_bias_gelu"],
            "; did you mean 'layer_bias_gelu'?",
        ),
    ],
)
def test_what_was_meant(given: Any, known: list[str], end: str) -> None:
    assert did_you_mean(given, known) == end
    assert must_be("it", given, known).endswith(f"got {given!r}{end}")


def test_of_very_many_names_the_first_are_listed() -> None:
    known = [f"name{number}" for number in range(60)]
    assert listed(known[:50]).endswith("name49")
    assert listed(known).endswith("name49 and 10 more")
    assert "name59" in must_be("it", "name59x", known)


PACKAGE = Path(session.__file__).parents[1]


def double(number: int) -> int:
    return 2 * number


def test_remembered_values_are_made_once_and_forgotten() -> None:
    made: list[int] = []

    def make(number: int) -> int:
        made.append(number)
        return double(number)

    remembered = session.Remembered(make)
    assert [remembered[(3,)], remembered[(3,)]] == [6, 6]
    remembered[(3,)] = 7
    assert (remembered[(3,)], made) == (7, [3])
    session.forget()
    assert (remembered[(3,)], made) == (6, [3, 3])


def test_the_oldest_key_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MOST", 2)
    remembered = session.Remembered(double)
    assert [remembered[(number,)] for number in range(3)] == [0, 2, 4]
    assert [*remembered] == [(1,), (2,)]


@pytest.mark.parametrize("lasting", [False, True])
def test_what_is_kept_is_counted_and_lasts_where_it_must(lasting: bool) -> None:
    held = session.keep("held in this test", {"one": 1}, lasting=lasting)
    function = session.cached(lasting=lasting)(double)
    function(2)
    names = "held in this test", f"{__name__}.double"
    assert [session.contents()[name] for name in names] == [1, 1]
    heard: list[str] = []
    session.on_forget(lambda: heard.append("forgotten"))
    session.forget()
    assert [session.contents()[name] for name in names] == [int(lasting)] * 2
    assert (len(held), heard) == (int(lasting), ["forgotten"])


def test_forks_are_heard_of_in_order_and_whatever_one_of_them_raises() -> None:
    script = """
import os, sys
from autotune.core import session
told = []
session.at_fork(before=lambda: told.append("before 1"), child=lambda: told.append("child 1"))
session.at_fork(before=lambda: 1 / 0, child=lambda: 1 / 0, parent=lambda: told.append("parent"))
session.at_fork(before=lambda: told.append("before 3"), child=lambda: told.append("child 3"))
child = os.fork()
if child:
    os.waitpid(child, 0)
print(*told, sep=", ", flush=True)
os._exit(0)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines() == [
        "before 3, before 1, child 1, child 3",
        "before 3, before 1, parent",
    ]
    assert ran.stderr.count("ZeroDivisionError") == 2


def test_there_is_one_hook_of_forks() -> None:
    found = [file for file in PACKAGE.rglob("*.py") if "os.register_at_fork" in file.read_text()]
    assert found == [PACKAGE / "core" / "session.py"]
