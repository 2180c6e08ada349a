"""A search leaves the state of the whole process as it is, however many threads search."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable

import optuna
import pytest
import threadpoolctl

from autotune import Searcher, SearchSpace
from autotune.search.importance import importances
from autotune.search.internals import quiet
from autotune.search.model.proposer import _ONE_THREAD


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
