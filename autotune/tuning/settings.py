"""Settings of a run of trials: one value that `tune`, `sweep` and `run_preset` pass on whole."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from autotune.core import arguments
from autotune.core.objective import TIME, Objective, objective_named

if TYPE_CHECKING:
    from autotune.measuring.effort import Effort
    from autotune.tuning.progress import Watcher

RANKS = ("cool", "sustained")
"""Ways to rank finalists."""


@dataclass(frozen=True, slots=True)
class Run:
    """Settings of a run of trials. Those that users give come through `of`.

    Attributes:
        trials: the most trials to make, all families together.
        timeout: seconds for everything; infinite where only trials count.
        until: probability of a gain of more than 1% below which trials end; None goes on.
        sampler: a sampler's name, or the dotted path of an `optuna.samplers.BaseSampler`.
        seed: seeds the sampler and the operands; 0 or more, below 2**63.
        storage: an Optuna storage URL; None keeps a journal file beside the cache.
        study: name of the study; an existing one is continued.
        workers: processes that compile; None uses every core.
        effort: how long and how exactly to measure, and by which objective; None is the default.
        racing: whether a candidate is abandoned once it is far behind the best so far.
        predicted: first trials that the device's cost model chooses.
        finals: whether the best candidates are measured again, for which time is kept.
        rank: by which of their times the finalists of a GPU are ranked: "cool", in short turns,
            or "sustained", without a pause, where that was measured and the objective is time.
        progress: called whenever something has moved.
    """

    trials: int = 200
    timeout: float = 60.0
    until: float | None = None
    sampler: str = "auto"
    seed: int = 0
    storage: str | None = None
    study: str | None = None
    workers: int | None = None
    effort: Effort | None = None
    racing: bool = True
    predicted: int = 8
    finals: bool = True
    rank: str = "cool"
    progress: Watcher | None = None

    @property
    def objective(self) -> Objective:
        """The objective that candidates are compared by."""
        return TIME if self.effort is None else self.effort.objective

    @property
    def ranks_sustained(self) -> bool:
        """True if times without a pause decide, where there are any."""
        return self.rank == "sustained" and self.objective.follows_time

    @classmethod
    def of(cls, *, objective: str | None = None, **settings: Any) -> Self:
        """Check settings as users give them; those left out have their defaults.

        Args:
            objective: name of what candidates are compared by; None leaves it to the effort.
            settings: by their names.

        Raises:
            InputError: one is of another type or out of range, there is no such sampler, or the
                storage cannot be opened; the message says which.
            MissingDependencyError: the sampler or the storage needs a package.
        """
        run = cls(**settings)
        checked: dict[str, Any] = {
            "trials": arguments.whole("trials", run.trials),
            "timeout": arguments.seconds("timeout", run.timeout),
            "seed": arguments.seed(run.seed),
            "workers": arguments.workers(run.workers),
        }
        arguments.text("sampler", run.sampler)
        arguments.must("rank", " or ".join(map(repr, RANKS)), run.rank, run.rank in RANKS)
        for name, value in (("storage", run.storage), ("study", run.study)):
            if value is not None:
                arguments.text(name, value)
        if (effort := run.effort) is not None or objective is not None:
            from autotune.measuring.effort import Effort  # late: who loads does not measure

            measures = effort is None or isinstance(effort, Effort)
            arguments.must("effort", "None or an autotune.Effort", effort, measures)
            if objective is not None:
                named = objective_named(arguments.text("objective", objective))
                checked["effort"] = replace(effort or Effort(), objective=named)
        progress = run.progress
        callable_or_none = progress is None or callable(progress)
        arguments.must("progress", "None or a function", progress, callable_or_none)
        from autotune.search import chance, check_sampler, check_storage  # late, as above

        checked["until"] = chance("until", run.until)
        check_sampler(run.sampler)
        if run.storage is not None:
            check_storage(run.storage)
        return cls(**{**settings, **checked})
