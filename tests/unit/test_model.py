"""Prices, portfolios and choices, on devices whose times are made up and therefore known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.core.configuration import Candidate, Configuration
from autotune.families.catalog import catalog
from autotune.families.family import KernelFamily
from autotune.model import Candidate as Row
from autotune.model import Chooser, Sizes, Timed, build, places_of, unit_of, variants
from autotune.model.fitting import Observation, counted_terms, fit
from autotune.model.selecting import select
from autotune.model.terms import TERMS, Programs
from autotune.operations.problem import Gemm
from autotune.targets.cuda.device.known_gpus import find_gpu

LIMITS = find_gpu("h200").limits
sizes_of_all_kinds = st.builds(
    Sizes,
    m=st.integers(1, 20_000),
    n=st.integers(1, 20_000),
    k=st.integers(1, 20_000),
    itemsize=st.sampled_from([4, 8]),
    layout=st.sampled_from(["nn", "nt", "tn", "tt"]),
)
tiles = st.tuples(*[st.sampled_from([1, 8, 16, 48, 128, 256])] * 3)


@given(sizes_of_all_kinds, tiles, st.integers(1, 128), st.integers(1, 8), st.integers(1, 200))
def test_terms_are_what_whole_numbers_give(
    sizes: Sizes, tile: tuple[int, int, int], parts: int, resident: int, places: int
) -> None:
    counted = dict(
        zip(TERMS, Programs([tile], [parts], [resident], places).count(sizes)[:, 0], strict=True)
    )
    units = -(-sizes.m // tile[0]) * -(-sizes.k // tile[1]) * parts
    steps = math.ceil(math.ceil(sizes.n / tile[2]) / parts)
    full, rest = divmod(units, places * resident)
    last = -(-rest // places)
    waves = full + (rest > 0)
    assert counted["steps of full waves"] == full * resident * steps
    assert counted["steps of the last wave"] == last * steps
    assert counted["steps in a row"] == waves * steps
    assert counted["units"] == full * resident + last
    assert counted["waves"] == waves
    assert counted["bytes of parts"] == (parts > 1) * parts * sizes.m * sizes.k * sizes.itemsize


def device_time(tile: tuple[int, int, int], sizes: Sizes, parts: int) -> float:
    """A device whose prices are known: a launch, steps by volume, and memory."""
    prices = dict.fromkeys(TERMS, 0.0)
    volume = math.prod(tile)
    prices["call"] = 2e-6
    prices["steps of full waves"] = 5e-12 * volume
    prices["steps of the last wave"] = 4e-12 * volume
    prices["steps in a row"] = 2e-8 + 1e-12 * volume
    prices["waves"] = 1e-6
    prices["bytes of B"] = 2e-13
    prices["bytes of parts"] = 4e-13
    prices["sum of parts"] = 2e-6
    counted = Programs([tile], [parts], [1], LIMITS.multiprocessor_count).count(sizes)[:, 0]
    return float(counted @ np.array(list(prices.values())))


def drawn(rng: np.random.Generator, count: int) -> list[Sizes]:
    m, k = (np.exp(rng.uniform(0, np.log(8192), count)).astype(int) for _ in range(2))
    n = np.exp(rng.uniform(np.log(16), np.log(8192), count)).astype(int)
    return [Sizes(*map(int, each), 4) for each in zip(m, n, k, strict=True)]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000))
def test_prices_predict_what_was_not_measured(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tile = (64, 128, 8)
    shapes = drawn(rng, 60)
    parts = rng.choice([1, 2, 4, 16], len(shapes)).tolist()
    seconds = np.array([device_time(tile, *each) for each in zip(shapes, parts, strict=True)])
    noisy = seconds * np.exp(rng.normal(0, 0.02, len(seconds)))
    noisy[3] *= 10  # a disturbed moment
    observed = [Observation(*each) for each in zip(shapes, parts, noisy, strict=True)]
    places = LIMITS.multiprocessor_count
    counted = counted_terms(tile, 1, places, observed)
    fitted = fit(counted[:40], noisy[:40], np.ones(40))
    assert (fitted.prices >= 0).all()
    errors = np.abs(np.log(counted[40:] @ fitted.prices / seconds[40:]))
    assert np.median(errors) < 0.05
    assert np.mean(errors) < 0.15


def test_without_measurements_of_a_term_the_prior_speaks() -> None:
    tile = (64, 64, 8)
    observed = [Observation(Sizes(64, n, 64, 4), 1, 1e-6 + 1e-9 * n) for n in (64, 512, 4096)]
    counted = counted_terms(tile, 1, 132, observed)
    prior = np.full(len(TERMS), 1e-9)
    prices = fit(counted, np.array([each.seconds for each in observed]), np.ones(3), prior).prices
    assert prices[TERMS.index("bytes of parts")] == pytest.approx(1e-9)


def test_a_portfolio_is_as_small_as_its_loss_allows() -> None:
    # Two programs that are good at one half each, one that is fair at all, and a poor one.
    seconds = np.array([[1.0, 1, 4, 4], [4, 4, 1, 1], [1.5, 1.5, 1.5, 1.5], [9, 9, 9, np.inf]])
    chosen, loss = select(seconds, np.ones(4), most=64, loss=0.01)
    assert chosen[0] == 2
    assert set(chosen[1:]) == {0, 1}
    assert loss == pytest.approx(0.0)
    chosen, loss = select(seconds, np.ones(4), most=64, loss=0.6)
    assert (chosen, round(loss, 6)) == ([2], 0.5)
    assert len(select(seconds, np.ones(4), most=1, loss=0.0)[0]) == 1
    with pytest.raises(ValueError, match="every shape needs a program"):
        select(np.array([[np.inf]]), np.ones(1), most=1, loss=0.0)


@pytest.fixture(scope="module")
def pipelined() -> KernelFamily:
    return catalog("cuda", "gemm", ())["pipelined"]


def test_what_is_built_chooses_well(pipelined: KernelFamily) -> None:
    rng = np.random.default_rng(5)
    problem = Gemm(1024, 1024, 1024)
    space = pipelined.space(problem, LIMITS)
    rows = space.sample(24, rng)
    programs = [space[int(row)] for row in rows]
    shapes = drawn(rng, 50)
    places = places_of(LIMITS)

    def seconds(configuration: Configuration, sizes: Sizes) -> float:
        tile, parts = unit_of(pipelined, configuration, "float32", LIMITS)
        return device_time(tile, sizes, parts)

    timed = [
        Timed(Candidate("pipelined", each), sizes, seconds(each, sizes))
        for each in programs
        for sizes in shapes[:25]
    ]
    built = build(timed, {"pipelined": pipelined}, "float32", LIMITS, loss=0.02)
    assert 0 < len(built.entries) <= 24
    assert (built.shapes, built.loss <= 0.02) == (25, True)
    candidates = [
        Row(entry, each, *unit_of(pipelined, each, "float32", LIMITS))
        for entry in built.entries
        for each in variants(pipelined, entry.configuration)
    ]
    chooser = Chooser(candidates, places)
    losses = []
    for sizes in shapes[25:]:
        choice = next(chooser.ranked(sizes))
        best = min(seconds(each, sizes) for each in programs)
        losses.append(seconds(choice.configuration, sizes) / best)
        assert choice.seconds == pytest.approx(seconds(choice.configuration, sizes), rel=0.5)
    assert np.exp(np.mean(np.log(losses))) < 1.1
    ranked = list(chooser.ranked(shapes[0]))
    assert len(ranked) == len(candidates)
    assert len({(c.entry, c.configuration) for c in ranked}) == len(candidates)
