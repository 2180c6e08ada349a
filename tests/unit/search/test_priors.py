"""What a search knows before it begins, and what decided in the end."""

from __future__ import annotations

import logging
import math
import random
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest
import threadpoolctl
from hypothesis import given
from hypothesis import strategies as st

from autotune import Searcher, SearchSpace
from autotune.core.configuration import Candidate
from autotune.core.device import Device
from autotune.core.limits import GpuLimits
from autotune.core.measurement import Measurement, Outcome
from autotune.families.family import KernelFamily
from autotune.families.gpu.occupancy import blocks_per_multiprocessor, resident_blocks
from autotune.families.gpu.resource_model import expected_log_time
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.operations.problem import Gemm
from autotune.search import make_sampler
from autotune.search.importance import FEWEST_POINTS, importances
from autotune.search.internals import quiet
from autotune.search.model import EstimatedPrior, MeasuredPrior
from autotune.search.model.proposer import _ONE_THREAD
from autotune.serving.predicting import Predictor
from autotune.serving.target import Target
from autotune.store import TuningCache
from autotune.targets.families import load_families
from autotune.targets.registry import make_target
from autotune.tuning.known import priors

FAMILIES = load_families(target="cuda", operation="gemm")


@pytest.fixture(scope="module")
def limits() -> GpuLimits:
    return find_gpu("h200").limits


@given(data=st.data())
def test_occupancy_of_many_is_that_of_each(data: st.DataObject) -> None:
    limits = find_gpu(data.draw(st.sampled_from(["t4", "a100", "h200", "b200"]))).limits
    kernels = st.tuples(st.integers(1, 1200), st.integers(1, 300), st.integers(0, 250_000))
    drawn = data.draw(st.lists(kernels, min_size=1, max_size=20))
    threads, registers, shared = (np.array(each) for each in zip(*drawn, strict=True))
    found = resident_blocks(limits, threads=threads, registers=registers, shared_bytes=shared)
    assert found.tolist() == [
        blocks_per_multiprocessor(limits, threads=t, registers=r, shared_bytes=s)
        for t, r, s in drawn
    ]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (16, 4096, 4096), (64, 65536, 64)])
def test_the_model_has_an_opinion_of_everything_valid(
    name: str, shape: tuple[int, int, int], limits: GpuLimits
) -> None:
    problem = Gemm(*shape)
    space = FAMILIES[name].space(problem, limits)
    if not len(space):
        pytest.skip("nothing is valid")
    model = expected_log_time(FAMILIES[name], problem, limits)
    assert model is not None
    rows = space.sample(200, np.random.default_rng(0))
    drawn = [space[int(row)] for row in rows]
    columns = {key: np.array([each[key] for each in drawn]) for key in drawn[0]}
    expected = model(columns)
    assert expected.shape == (200,)
    assert np.isfinite(expected).all()


def cost(family: KernelFamily, problem: Gemm, limits: GpuLimits, **values: int) -> float:
    model = expected_log_time(family, problem, limits)
    assert model is not None
    configuration = {**family.default(problem, limits), **values}
    return float(model({name: np.array([value]) for name, value in configuration.items()})[0])


def test_the_model_ranks_what_is_known_to_be_far_apart(limits: GpuLimits) -> None:
    block, large, small = FAMILIES["block"], Gemm(8192, 8192, 8192), Gemm(256, 256, 256)
    # A thread that computes four elements reads two from shared memory for every product.
    assert cost(block, large, limits, tx=2, ty=2, sm=32, sk=32) > cost(block, large, limits)
    # Tiles of 128 x 128 leave all but four multiprocessors idle.
    assert cost(block, small, limits) > cost(block, small, limits, sm=32, sk=32, tx=4, ty=4)
    # A block whose registers do not fit cannot be launched.
    assert math.isnan(cost(block, large, limits, sm=256, sk=256, tx=2, ty=2))


def test_shares_of_a_last_wave_are_expected_to_pay(limits: GpuLimits) -> None:
    streamed, pipelined = FAMILIES["streamed"], FAMILIES["pipelined"]
    ragged = Gemm(128 * 17, 4096, 128 * 8)  # four blocks more than multiprocessors
    assert cost(streamed, ragged, limits) < cost(pipelined, ragged, limits)
    # A tile is as large with its reduction split as it is without.
    few = Gemm(512, 4096, 512)
    assert cost(pipelined, few, limits, splits=8) < cost(pipelined, few, limits, splits=1)


def nobody(device: Device) -> Predictor:
    """Who predicts where there is no portfolio."""
    return Predictor([], {}, device)


def context_of(
    problem: Gemm,
    target: Target,
    device: Device,
    families: Mapping[str, KernelFamily],
    store: TuningCache,
) -> Any:
    """A tuning context, as far as priors look at it."""
    return SimpleNamespace(
        problem=problem,
        target=target,
        device=device,
        families=families,
        union=SimpleNamespace(spaces=families),
        store=store,
        predictor=lambda operation: nobody(device),
    )


def test_measurements_of_the_nearest_problems_are_priors(tmp_path: Path) -> None:
    target = make_target("cpu")
    problem = Gemm(256, 256, 256)
    device = target.device(problem, None)
    families = {"loops": load_families(target="cpu", operation="gemm")["loops"]}
    store = TuningCache(tmp_path / "cache.sqlite")
    context = context_of(problem, target, device, families, store)
    assert priors(context) == []
    for size, count in ((512, 25), (1024, 25), (4096, 25), (300, 5)):
        other = Gemm(size, size, size)
        space = families["loops"].space(other, device.limits)
        rows = space.sample(min(count, space.size), np.random.default_rng(0))
        found = [
            (Candidate("loops", space[int(row)]), Measurement(Outcome.OK, 1e-3 * (1 + place)))
            for place, row in enumerate(np.resize(rows, count))
        ]
        store.add_measurements("study", device.fingerprint, other, "cpu", found)
        failed = Measurement(Outcome.TIMEOUT, reason="it hung")
        store.add_measurements(
            "study", device.fingerprint, other, "cpu", [(Candidate("loops", space[0]), failed)]
        )
    known = {row.problem["m"]: row.successes for row in store.measured_problems("gemm", "cpu")}
    assert known == {512: 25, 1024: 25, 4096: 25, 300: 5}
    found_priors = priors(context)
    assert [type(prior) for prior in found_priors] == [MeasuredPrior, MeasuredPrior]
    space = families["loops"].space(problem, device.limits)
    assert make_sampler("auto", space, 0, found_priors) is not None


def test_a_gpu_has_its_resource_model(tmp_path: Path) -> None:
    device = make_target("cuda").device(None, "h200")
    store = TuningCache(tmp_path / "cache.sqlite")
    cuda, problem = make_target("cuda"), Gemm(512, 512, 512)
    (only,) = priors(context_of(problem, cuda, device, FAMILIES, store))
    assert isinstance(only, EstimatedPrior)


def points(count: int, seed: int = 0) -> tuple[list[dict[str, Any]], list[float]]:
    """`strong` decides, `weak` helps, `none` does nothing."""
    rng = random.Random(seed)
    found = [
        {
            "strong": rng.choice([1, 2, 4, 8]),
            "weak": rng.choice(["a", "b"]),
            "none": rng.choice([0, 1, 2]),
        }
        for _ in range(count)
    ]
    times = [
        8 / each["strong"] + 0.3 * (each["weak"] == "b") + rng.uniform(0, 0.1) for each in found
    ]
    return found, times


def test_shares_rank_the_parameters_and_lie_in_their_intervals() -> None:
    found = importances(*points(400))
    assert [each.name for each in found] == ["strong", "weak", "none"]
    assert sum(each.share for each in found) == pytest.approx(1.0)
    for each in found:
        assert 0 <= each.low <= each.share <= each.high <= 1
    # What decides is told apart from what does nothing.
    assert found[0].low > found[-1].high


def test_what_the_slower_nine_tenths_took_does_not_matter() -> None:
    found, times = points(200)
    order = sorted(range(200), key=times.__getitem__)
    slower = order[20:]
    random.Random(1).shuffle(slower)
    ranks = {row: float(rank) for rank, row in enumerate([*order[:20], *slower])}
    shuffled = importances(found, [ranks[row] for row in range(200)])
    assert {each.name: each.share for each in shuffled} == {
        each.name: pytest.approx(each.share) for each in importances(found, times)
    }


def test_more_points_say_it_more_surely() -> None:
    few, many = (
        {each.name: each.high - each.low for each in importances(*points(count))}
        for count in (40, 800)
    )
    assert many["strong"] < few["strong"]


def test_equal_seeds_say_the_same() -> None:
    assert importances(*points(60), seed=3) == importances(*points(60), seed=3)


def test_parameters_need_not_be_in_all_points() -> None:
    found, times = points(200)
    conditional = [
        {"family": "f", **{f"f.{name}": value for name, value in point.items()}}
        if number % 2
        else {"family": "g", "g.x": number % 5}
        for number, point in enumerate(found)
    ]
    # All of g is slow.
    slow = [time if number % 2 else time + 100 for number, time in enumerate(times)]
    shares = {each.name: each.share for each in importances(conditional, slow)}
    assert shares.keys() == {"family", "f.strong", "f.weak", "f.none", "g.x"}
    assert shares["g.x"] == 0
    assert shares["f.strong"] > shares["f.none"]


def test_values_of_several_types_are_told_apart() -> None:
    given = [{"x": value} for value in (True, 1.5, "1", 2)] * 10
    [only] = importances(given, [1.0, 2.0, 3.0, 4.0] * 10)
    assert only.share == 1.0


def test_values_that_are_rare_are_no_warning() -> None:
    found, times = points(60)
    rare = [{**point, "more": 1} if number in (3, 9, 12) else point
            for number, point in enumerate(found)]  # fmt: skip
    assert {each.name for each in importances(rare, times)} >= {"strong", "weak", "none"}


def test_too_few_points_say_nothing() -> None:
    assert importances(*points(FEWEST_POINTS - 1)) == []
    assert importances(*points(FEWEST_POINTS)) != []


def search(sampler: str, seed: int = 0, trials: int = 12) -> None:
    searcher = Searcher(SearchSpace({"a": range(20), "b": range(20)}), sampler, seed)
    for _ in range(trials):
        found = searcher.ask()
        assert found is not None
        searcher.tell(found, 1.0 + float(found["a"]))


def in_threads(count: int, work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(each,)) for each in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


@pytest.mark.parametrize("threads", [1, 4])
def test_level_filters_and_blas_stay(threads: int) -> None:
    search("tpe", trials=1)
    search("auto")  # SciPy, when it is imported, sets filters of its own
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.INFO)
    filters, blas = [*warnings.filters], threadpoolctl.threadpool_info()
    try:
        for sampler in ("tpe", "auto"):
            in_threads(threads, lambda seed, sampler=sampler: search(sampler, seed))
        assert optuna.logging.get_verbosity() == optuna.logging.INFO
        assert warnings.filters == filters
        assert threadpoolctl.threadpool_info() == blas
    finally:
        optuna.logging.set_verbosity(verbosity)


def test_proposals_lower_the_threads_of_blas_in_turn() -> None:
    """Else the second would take the first one's number for the program's."""
    begun, seen = threading.Event(), []

    def other() -> None:
        begun.set()
        with _ONE_THREAD.limit():
            seen.append("inside")

    thread = threading.Thread(target=other)
    with _ONE_THREAD.limit():
        thread.start()
        assert begun.wait(60)
        info = threadpoolctl.threadpool_info()
        assert {each["num_threads"] for each in info if each["user_api"] == "blas"} == {1}
        assert not seen
    thread.join()
    assert seen


def test_what_a_program_shows_once_stays_shown_once() -> None:
    def noisy() -> None:
        warnings.warn("something is old", UserWarning, stacklevel=1)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        search("tpe", trials=1)
        for _ in range(3):
            search("tpe", trials=1)
            points = [{"x": each % 4} for each in range(30)]
            importances(points, [1.0 + each for each in range(30)])
            noisy()
    assert [str(each.message) for each in told] == ["something is old"]


def test_a_program_s_own_use_of_optuna_keeps_its_words() -> None:
    """Also while another thread of it searches."""
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("optuna")
    logger.addHandler(handler)
    entered, leave = threading.Event(), threading.Event()

    def inside() -> None:
        with quiet():
            optuna.create_study(study_name="of the search")
            optuna.samplers.QMCSampler()
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=inside)
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.INFO)
    try:
        thread.start()
        assert entered.wait(60)
        optuna.create_study(study_name="of the program")
        with pytest.warns(optuna.exceptions.ExperimentalWarning):
            optuna.samplers.QMCSampler()
    finally:
        leave.set()
        thread.join()
        logger.removeHandler(handler)
        optuna.logging.set_verbosity(verbosity)
    assert len(told) == 1
    assert "of the program" in told[0]


def test_only_what_is_named_is_dropped_and_inner_blocks_add_to_it() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with quiet(UserWarning):
            with quiet():
                warnings.warn("dropped", UserWarning, stacklevel=1)
            warnings.warn("kept", FutureWarning, stacklevel=1)
        warnings.warn("told", UserWarning, stacklevel=1)
    assert [str(each.message) for each in seen] == ["kept", "told"]
