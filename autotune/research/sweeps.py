"""Sweeps: every valid configuration measured, in random order, and files of what they measured."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from autotune.core import arguments, checks
from autotune.core.deadline import Deadline
from autotune.core.errors import AutotuneError, InputError
from autotune.core.interrupt import Interrupt
from autotune.core.measurement import Outcome
from autotune.core.paths import CacheLocations
from autotune.measuring.effort import Effort
from autotune.operations.problem import Problem
from autotune.research.space import RecordedSpace, Recording
from autotune.research.swept import GOALS, entry_of
from autotune.search.reading import read_study
from autotune.serving.target import Target
from autotune.space.document import write_spaces
from autotune.store import StoredMeasurement, TuningCache
from autotune.tuning.budget import Budget
from autotune.tuning.context import TuningContext, surroundings
from autotune.tuning.progress import Watcher
from autotune.tuning.results import TrialResult
from autotune.tuning.settings import Run
from autotune.tuning.trials import TrialRun


def recorded_from_cache(
    path: Path,
    *,
    study: str | None = None,
    problem: Problem | None = None,
    target: str | None = None,
) -> RecordedSpace:
    """The measurements in a cache's SQLite file, of one study, problem or target only if given.

    Raises:
        InputError: there are no such measurements, or they are of several problems or devices.
        CacheError: the cache cannot be read.
    """
    found = TuningCache(path).measurements(study=study, problem=problem, target=target)
    label = None if problem is None else problem.label
    given = {"study": study, "problem": label, "target": target}
    wanted = ", ".join(f"{what} {value!r}" for what, value in given.items() if value is not None)
    if not found:
        raise InputError(f"{path} holds no measurements of {wanted or 'anything'}: sweep it first")
    kinds = {(json.dumps(one.problem), one.target, one.fingerprint) for one in found}
    if len(kinds) > 1:
        raise InputError(
            f"{path} holds measurements of {len(kinds)} problems, targets or devices for "
            f"{wanted or 'everything'}: name a study"
        )
    # The newest measurement of a candidate counts.
    newest = {one.candidate: one.measurement for one in found}
    rows = (entry_of(candidate, measurement) for candidate, measurement in newest.items())
    return Recording(
        rows,
        name=study or wanted,
        unit="s",
        device=_device_name(path, found[0]),
        format="cache",
        goal=GOALS.get(found[-1].measurement.objective),
    ).space()


def _device_name(path: Path, measured: StoredMeasurement) -> str:
    """The name of a device by a record of it, or the study's journal; else its digest."""
    for record in TuningCache(path).records(fingerprint_digest=measured.fingerprint):
        return record.fingerprint.name
    with suppress(AutotuneError):
        study = read_study(measured.study, None, CacheLocations(path.parent, path).studies)
        if study is not None and study.subject.get("device"):
            return checks.line("device", study.subject["device"])
    return measured.fingerprint


SAMPLES = 256
"""Raw samples that are kept of a configuration at most, evenly spaced where there are more."""

LARGEST_SWEEP = 1 << 24
"""Configurations that are swept at most without a limit; a billion would take centuries."""


@dataclass(frozen=True, slots=True)
class SweepResult:
    """Measurements of a sweep, in this run and in those before it.

    Attributes:
        problem: what was swept.
        target: where it runs.
        device: the device's name.
        study: name of the Optuna study behind it.
        seed: what the order was drawn from.
        size: valid configurations of all families.
        wanted: how many of them the sweep is to measure.
        measured: those measured so far, failing ones included, in the order drawn.
        seconds: wall time of this run.
        interrupted: Ctrl-C, or another request to stop, ended it early.
        provenance: the device's fingerprint and limits, toolchain, state with clocks as far as
            they are known, version and date; how exactly was measured, and the vendor's
            library as this run measured it; digests of the families, and their `spaces` as
            `autotune.space.document` has them.
    """

    problem: Problem
    target: str
    device: str
    study: str
    seed: int
    size: int
    wanted: int
    measured: tuple[TrialResult, ...]
    seconds: float
    interrupted: bool
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Everything wanted has been measured."""
        return len(self.measured) == self.wanted

    @property
    def counts(self) -> dict[Outcome, int]:
        """Measured configurations by outcome."""
        return dict(Counter(result.measurement.outcome for result in self.measured))


def sweep(
    problem: Problem,
    *,
    target: str | Target | None = None,
    device: int | str | None = None,
    families: Sequence[str] = (),
    extra_families: Sequence[Path] = (),
    limit: int | None = None,
    seed: int = 0,
    cache: str | Path | None = None,
    storage: str | None = None,
    study: str | None = None,
    workers: int | None = None,
    effort: Effort | None = None,
    objective: str | None = None,
    racing: bool = False,
    progress: Watcher | None = None,
    **options: Any,
) -> SweepResult:
    """Measure every valid configuration of the families for a problem, or a random part of them.

    Nothing is stored as a tuning record; measurements go to the cache and to a study. The same
    call again goes on where an interrupted one was, and returns at once when all is measured. The
    order is a random permutation, so that what an interrupted sweep has is a uniform sample; a
    larger limit with the same seed extends a smaller one.

    Args:
        problem: what to sweep.
        target: where to run; None takes the best this machine has.
        device: which GPU, by number or (part of) its name; None takes the first.
        families: names of the families to sweep; empty takes all that can serve the problem.
        extra_families: folders with families of the user's own.
        limit: how many configurations to measure in all; None measures every one.
        seed: draws the order, and the operands; 0 or more, below 2**63.
        cache: folder or database of the user's cache; None takes the default place.
        storage: an Optuna storage URL; None keeps a journal file beside the cache.
        study: name of the study; None derives one from problem, target, device and space.
        workers: processes that compile, at least 1; None uses every core.
        effort: how long and how exactly to measure; None takes the default.
        objective: what kernels are compared by: "time", "throughput", "energy", "error" or
            another package's (`autotune.core.objective`); None takes the effort's.
        racing: abandon what is far behind the best so far; its times are then those
            of its first runs. Without, what was abandoned before in the study is measured again.
        progress: called whenever something has moved.
        options: what the target can be told (its `OPTIONS`), as for `load`.

    Raises:
        InputError: something above cannot be used; the message says what and why.
        CacheError: the cache cannot be written.
    """
    deadline = Deadline()
    limit = None if limit is None else arguments.whole("limit", limit)
    run = Run.of(
        timeout=math.inf,
        sampler="exhaustive",
        seed=seed,
        storage=storage,
        study=study,
        workers=workers,
        effort=effort,
        objective=objective,
        racing=racing,
        finals=False,
        progress=progress,
    )
    context = TuningContext.of(
        problem,
        target=target,
        device=device,
        families=families,
        extra_families=extra_families,
        cache=cache,
        options=options,
    )
    union = context.union
    if limit is None and union.size > LARGEST_SWEEP:
        raise InputError(
            f"{union.size} configurations are too many to sweep, at most {LARGEST_SWEEP}: "
            "give a limit"
        )
    wanted = union.size if limit is None else min(limit, union.size)
    rows = list(islice(shuffled_rows(union.size, run.seed), wanted))
    run = replace(run, study=run.study or _study_name(context))
    with (
        Interrupt(deadline, "what was measured is kept") as interrupt,
        context.open(run) as (opened, evaluator),
    ):
        evaluator.samples = SAMPLES
        if not racing:
            opened.measure_whole()
        run = replace(run, trials=len(set(rows) - opened.visited))
        trials = TrialRun(context, opened, evaluator, run, Budget(deadline, interrupt))
        if run.trials:
            trials.search(union[row] for row in rows)
        # Of what was abandoned and then measured again, the later one counts.
        known = {
            candidate: measurement
            for candidate, measurement in opened.measured()
            if racing or measurement.outcome is not Outcome.ABANDONED
        }
        name = opened.name
    measured = (TrialResult(union[row], known[union[row]]) for row in rows if union[row] in known)
    return SweepResult(
        problem=problem,
        target=context.target.name,
        device=context.device.fingerprint.name,
        study=name,
        seed=run.seed,
        size=union.size,
        wanted=wanted,
        measured=tuple(measured),
        seconds=deadline.elapsed_s,
        interrupted=interrupt.requested,
        provenance=_provenance(context, run, trials),
    )


def _provenance(context: TuningContext, run: Run, trials: TrialRun) -> dict[str, Any]:
    """Origin of measurements, as JSON-able values."""
    families = {name: context.families[name] for name in context.union.spaces}
    # Evaluators of other packages need not say it.
    effort = getattr(trials.evaluator, "effort", run.effort)
    library = trials.baseline
    return {
        "created": checks.utc_now(),
        **surroundings(context.device),
        "objective": run.objective.name,
        "budget_s": effort and effort.budget_s,
        "interval": effort and effort.interval,
        "most_samples": SAMPLES,
        "baseline": library and {"name": library.name, "median_s": library.median_s},
        "families": {name: {"digest": family.digest} for name, family in families.items()},
        "spaces": write_spaces(context.union),
    }


def shuffled_rows(size: int, seed: int) -> Iterator[int]:
    """The numbers below `size` in a random order; the first ones do not depend on how many follow.

    Small spaces are permuted; of large ones, of which nobody takes more than a part, rows are
    drawn and repetitions passed over.
    """
    rng = np.random.default_rng(seed)
    if size <= LARGEST_SWEEP:
        yield from rng.permutation(size).tolist()
        return
    drawn: set[int] = set()
    bits = size.bit_length()  # there may be more than NumPy's integers have
    while len(drawn) < size:
        row = int.from_bytes(rng.bytes((bits + 7) // 8)) >> (-bits % 8)
        if row < size and row not in drawn:
            drawn.add(row)
            yield row


def _study_name(context: TuningContext) -> str:
    """Study name, derived from problem, device and space: the same call goes on in it."""
    operation, target = context.problem.operation, context.target.name
    key, device = context.problem.key(), context.device.fingerprint.digest
    identity = json.dumps([key, target, device, context.union.digest], sort_keys=True)
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    return f"sweep-{operation}-{context.problem.label}-{target}-{digest}"
