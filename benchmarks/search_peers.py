"""Other tuners searching a recorded space, at their defaults and charged like our samplers.

Kernel Tuner runs its own strategies on its own simulation runner, over a search space of its own
that it builds from a cache of the recorded configurations. pyATF runs its default search technique
over a space whose constraints admit the same, with a cost function that looks times up. Both are
seeded through Python's and NumPy's global generators, as they have no seed of their own. What they
evaluate again costs them nothing, as in their own evaluators.
"""

from __future__ import annotations

import copy
import inspect
import random
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from autotune.core.configuration import Value
from autotune.research import RecordedSpace, Run, read_recorded, run_sampler

KERNEL_TUNER_STRATEGIES = (
    "adaptive_tabu_greywolf",
    "genetic_algorithm",
    "hybrid_vndx",
    "simulated_annealing",
)

STUCK = 50
"""pyATF goes on for ever where it proposes nothing new: it is stopped after this many times the
budget of evaluations, new or not."""

Peer = Callable[[int, int], Run]
"""Searches one space: (trials, seed) -> run."""


def peers() -> tuple[str, ...]:
    """Names of the peers."""
    return (*(f"Kernel Tuner {name}" for name in KERNEL_TUNER_STRATEGIES), "pyATF AUCBandit")


def contestant_worker(path: Path) -> Callable[[tuple[str, int, int]], tuple[list[int], float]]:
    """Entry of a worker process: it reads the space once and runs (name, trials, seed)."""
    recorded = read_recorded(path)
    peer = cache(lambda name: make_peer(name, recorded))

    def handle(request: tuple[str, int, int]) -> tuple[list[int], float]:
        run = made(*request)
        return run.rows.tolist(), run.cpu_s

    def made(name: str, trials: int, seed: int) -> Run:
        if name in peers():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # theirs, about overflowing penalties
                return peer(name)(trials, seed)
        return run_sampler(recorded, name, trials, seed)

    return handle


def make_peer(name: str, recorded: RecordedSpace) -> Peer:
    """A peer that searches this space."""
    tuner, _, strategy = name.rpartition(" ")
    if tuner == "Kernel Tuner":
        return _kernel_tuner(strategy, recorded)
    if tuner == "pyATF":
        return _pyatf(recorded)
    raise ValueError(f"no peer {name!r}: use {', '.join(peers())}")


def _kernel_tuner(strategy_name: str, recorded: RecordedSpace) -> Peer:
    from kernel_tuner.interface import Options, strategy_map
    from kernel_tuner.runners.simulation import SimulationRunner
    from kernel_tuner.searchspace import Searchspace
    from kernel_tuner.util import RuntimeFailedConfig, TuningBudget

    parameters, configurations, values = _plain(recorded)
    entries: dict[str, dict[str, Any]] = {}
    rows: dict[tuple[Value, ...], int] = {}
    for row, (configuration, value) in enumerate(zip(configurations, values, strict=True)):
        entry: dict[str, Any] = dict(zip(parameters, configuration, strict=True))
        entry["time"] = RuntimeFailedConfig() if np.isnan(value) else value
        if np.isnan(value):
            entry["__error__"] = RuntimeFailedConfig()
        entries[",".join(map(str, configuration))] = entry
        rows[configuration] = row
    fresh = Searchspace(None, None, None, from_cache={"tune_params": parameters, "cache": entries})
    assert fresh.size == len(rows)
    strategy = strategy_map[strategy_name]

    def search(trials: int, seed: int) -> Run:
        # A space remembers the neighbours it was asked for, which changes what it answers later.
        space = copy.deepcopy(fresh)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - the generator that Kernel Tuner draws from
        runner = SimulationRunner(
            None,
            Options(kernel_name=recorded.name),
            Options(quiet=True),
            iterations=1,
            observers=None,
        )
        options = Options(
            tune_params=parameters,
            restrictions=None,
            objective=["time"],
            objective_higher_is_better=[False],
            strategy_options=Options(max_fevals=trials),
            cache=entries,
            metrics=None,
            verbose=False,
            eps=1e-6,
            budget=TuningBudget(None, trials),
        )
        started = time.process_time()
        results = strategy.tune(space, runner, options)
        cpu_s = time.process_time() - started
        asked = [rows[tuple(result[name] for name in parameters)] for result in results]
        return Run(np.array(list(dict.fromkeys(asked))[:trials], dtype=np.int64), cpu_s)

    return search


def _pyatf(recorded: RecordedSpace) -> Peer:
    from pyatf import TP, Set, Tuner
    from pyatf.abort_conditions.abort_condition import AbortCondition
    from pyatf.search_space import SearchSpace
    from pyatf.tuning_data import CostFunctionError

    parameters, configurations, values = _plain(recorded)
    names = list(parameters)
    rows = {configuration: row for row, configuration in enumerate(configurations)}
    constraints = {
        prefix[-1]: _constraint(prefix, values)
        for prefix, values in _pruning_prefixes(parameters, configurations)
    }
    tps = [TP(name, Set(*values), constraints.get(name)) for name, values in parameters.items()]
    space = SearchSpace(*tps, verbosity=0)
    assert space.constrained_size == len(rows)

    class Spent(AbortCondition):  # type: ignore[misc]
        def __init__(self, seen: dict[int, None], trials: int) -> None:
            self._seen, self._trials = seen, trials

        def stop(self, data: Any) -> bool:
            asked = data.number_of_evaluated_configurations
            return len(self._seen) >= self._trials or asked >= STUCK * self._trials

        def progress(self, data: Any) -> float:
            return len(self._seen) / self._trials

        def to_json(self) -> dict[str, Any]:
            return {"kind": "Spent"}

    def search(trials: int, seed: int) -> Run:
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - in case a technique draws from it
        seen: dict[int, None] = {}

        def cost(configuration: dict[str, Any]) -> float:
            row = rows[tuple(configuration[name] for name in names)]
            seen[row] = None
            if np.isnan(values[row]):
                raise CostFunctionError("failed when it was recorded")
            return float(values[row])

        started = time.process_time()
        Tuner().search_space(space).verbosity(0).tune(cost, Spent(seen, trials))
        cpu_s = time.process_time() - started
        return Run(np.array(list(seen)[:trials], dtype=np.int64), cpu_s)

    return search


Prefixes = set[tuple[Value, ...]]


def _pruning_prefixes(
    parameters: dict[str, list[Value]], configurations: list[tuple[Value, ...]]
) -> Iterator[tuple[list[str], Prefixes]]:
    """The first parameters, and what they can be, wherever that is not everything.

    Constraints on these admit exactly the configurations, and let a tuner build the space without
    looking at the whole Cartesian product.
    """
    names = list(parameters)
    shorter: Prefixes = {()}
    for position, name in enumerate(names, start=1):
        prefixes = {configuration[:position] for configuration in configurations}
        if len(prefixes) < len(shorter) * len(parameters[name]):
            yield names[:position], prefixes
        shorter = prefixes


def _constraint(names: list[str], prefixes: Prefixes) -> Callable[..., bool]:
    """Whether values are among the prefixes, with the signature that pyATF reads names from."""

    def admits(**values: Value) -> bool:
        return tuple(values[name] for name in names) in prefixes

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in names]
    admits.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return admits


def _plain(
    recorded: RecordedSpace,
) -> tuple[dict[str, list[Value]], list[tuple[Value, ...]], np.ndarray]:
    """Parameters with their values, configurations by row, and what they came to."""
    if not hasattr(recorded.space, "parameters"):
        raise ValueError(f"{recorded.name} is of several families: peers take one kernel's space")
    parameters = {each.name: list(each.values) for each in recorded.space.parameters}
    configurations = [tuple(configuration.values()) for configuration in recorded.space]
    return parameters, configurations, recorded.values
