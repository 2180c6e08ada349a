"""Sweeps: every valid configuration measured, in random order, and files of what they measured."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from autotune.core import arguments, checks
from autotune.core.configuration import Candidate, Value
from autotune.core.deadline import Deadline
from autotune.core.errors import AutotuneError, InputError
from autotune.core.interrupt import Interrupt
from autotune.core.measurement import Measurement, Outcome
from autotune.core.paths import CacheLocations
from autotune.measuring.effort import Effort
from autotune.operations.problem import Problem
from autotune.research.space import Entry, RecordedSpace, Recording, configuration
from autotune.search.reading import read_study
from autotune.serving.target import Target
from autotune.store import StoredMeasurement, TuningCache
from autotune.tuning.budget import Budget
from autotune.tuning.context import TuningContext
from autotune.tuning.progress import Watcher
from autotune.tuning.results import TrialResult
from autotune.tuning.run import TrialRun
from autotune.tuning.settings import Run

CSV_COLUMNS = ("family", "outcome", "median_s", "low_s", "high_s", "repeats", "reason")
"""The first columns; those after them are parameters, empty where a family lacks one."""

_OLD_COLUMNS = ("family", "configuration", "outcome", "median_s", "low_s", "high_s", "reason")
"""Those of earlier files, where the configuration is one JSON object."""


def document(candidate: Candidate, measurement: Measurement) -> dict[str, Any]:
    """One measurement of a sweep as JSON."""
    return {
        "family": candidate.family,
        "configuration": dict(candidate.configuration),
        "outcome": str(measurement.outcome),
        "median_s": measurement.median_s,
        "interval_s": None if measurement.interval_s is None else list(measurement.interval_s),
        "repeats": measurement.repeats,
        "reason": measurement.reason,
    }


def write_csv(measured: Iterable[tuple[Candidate, Measurement]]) -> str:
    """The measurements of a sweep as CSV, one a row, times in seconds, a column a parameter."""
    rows = list(measured)
    parameters = dict.fromkeys(name for candidate, _ in rows for name in candidate.configuration)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*CSV_COLUMNS, *parameters])
    for candidate, measurement in rows:
        values = candidate.configuration
        writer.writerow(
            [
                candidate.family,
                measurement.outcome,
                measurement.median_s,  # nothing is written for None
                *(measurement.interval_s or (None, None)),
                measurement.repeats,
                measurement.reason,
                *(_cell(values[name]) if name in values else None for name in parameters),
            ]
        )
    return out.getvalue()


def _cell(value: Value) -> str:
    """A value as it is read again: text as it is, unless it reads like something else."""
    return value if isinstance(value, str) and _value(value) == value else json.dumps(value)


def _value(cell: str) -> Any:
    """The value of a cell: a number, true, false, or text; None where it is empty."""
    if not cell:
        return None
    try:
        value = json.loads(cell)
    except (ValueError, RecursionError):
        return cell
    return value if isinstance(value, str | int | float) else cell


def is_csv(content: str) -> bool:
    """Recognise a sweep's CSV."""
    return content.startswith((",".join(CSV_COLUMNS[:4]), ",".join(_OLD_COLUMNS[:4])))


def read_csv(content: str, name: str) -> Recording:
    """A sweep as `write_csv` writes it, or as it once did.

    Raises:
        InputError: a field is missing or not what it should be.
    """
    return Recording(_csv_rows(content), name, unit="s", format="sweep (CSV)")


def _csv_rows(content: str) -> Iterator[Entry]:
    rows = enumerate(csv.reader(io.StringIO(content)), start=1)
    number, columns = 0, list[str]()
    try:
        for number, row in rows:
            if not columns:
                columns = row
            elif row:  # a line may be empty
                yield _csv_entry(columns, row, f"line {number}")
    except csv.Error as error:
        raise InputError(f"line {number + 1}: not usable CSV: {error}") from error


def _csv_entry(columns: list[str], row: list[str], where: str) -> Entry:
    count = len(CSV_COLUMNS)
    cells = dict(zip(columns[:count], row, strict=False))
    is_old = "configuration" in columns[:count]
    try:
        if is_old:
            found = json.loads(cells.get("configuration", ""))
        else:
            values = zip(columns[count:], map(_value, row[count:]), strict=False)
            found = {name: value for name, value in values if value is not None}
        median_s, low_s, high_s = (
            float(text) if (text := cells.get(column)) else None
            for column in ("median_s", "low_s", "high_s")
        )
        repeats = int(cells.get("repeats") or 0)
    except (ValueError, RecursionError) as error:
        wanted = "a configuration as JSON, " if is_old else ""
        raise InputError(
            f"{where}: expected {wanted}times in seconds and a whole number of repeats ({error})"
        ) from error
    interval = [low_s, high_s] if high_s else None
    numbers = {"median_s": median_s, "interval_s": interval, "repeats": repeats}
    return _entry({**cells, "configuration": found, **numbers}, where)


def is_sweep(document: Mapping[str, Any]) -> bool:
    """Recognise a sweep's JSON."""
    return "measurements" in document and "results" not in document


def read_sweep(document: Mapping[str, Any], name: str) -> Recording:
    """A sweep as `autotune sweep` writes it.

    Raises:
        InputError: a key is missing or not what it should be.
    """
    measurements = checks.sequence("measurements", document["measurements"])
    rows = (
        _entry(checks.mapping(f"measurements[{number}]", stored), f"measurements[{number}]")
        for number, stored in enumerate(measurements)
    )
    device = checks.line("device", document.get("device", ""))
    known = ("operation", "problem", "target", "study")
    subject = {key: document[key] for key in known if key in document}
    return Recording(rows, name, unit="s", device=device, format="sweep", subject=subject)


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
    rows = [
        _entry(document(candidate, measurement), str(candidate))
        for candidate, measurement in newest.items()
    ]
    device = _device_name(path, found[0])
    return RecordedSpace.of(rows, name=study or wanted, unit="s", device=device, format="cache")


def _device_name(path: Path, measured: StoredMeasurement) -> str:
    """The name of a device by a record of it, or the study's journal; else its digest."""
    for record in TuningCache(path).records(fingerprint_digest=measured.fingerprint):
        return record.fingerprint.name
    with suppress(AutotuneError):
        study = read_study(measured.study, None, CacheLocations(path.parent, path).studies)
        if study is not None and study.subject.get("device"):
            return checks.line("device", study.subject["device"])
    return measured.fingerprint


def _entry(stored: Mapping[str, Any], where: str) -> Entry:
    """A measurement; one that was rejected after compiling failed like any other."""
    missing = [key for key in ("configuration", "outcome") if stored.get(key) is None]
    if missing:
        raise InputError(f"{where}: expected the key `{missing[0]}`")
    outcome = stored["outcome"]
    if outcome not in tuple(Outcome):  # it may be anything, and not hashable
        raise checks.wrong(f"{where}.outcome", f"one of {', '.join(Outcome)}", outcome)
    values = configuration(where, stored["configuration"])
    median_s, interval = stored.get("median_s"), stored.get("interval_s")
    value = None
    # What was abandoned ran too: its time is of its first runs.
    if outcome in (Outcome.OK, Outcome.ABANDONED):
        if not checks.is_number(median_s) or not median_s > 0:
            raise checks.wrong(f"{where}.median_s", "positive seconds", median_s)
        value = float(median_s)
    return Entry(
        values,
        value,
        checks.line(f"{where}.family", stored.get("family", "")),
        outcome,
        str(stored.get("reason") or ""),
        None if interval is None else checks.interval(f"{where}.interval_s", interval),
        repeats if type(repeats := stored.get("repeats")) is int else 0,
    )


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
        if not racing:
            opened.measure_whole()
        run = replace(run, trials=len(set(rows) - opened.visited))
        if run.trials:
            trials = TrialRun(context, opened, evaluator, run, Budget(deadline, interrupt))
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
    )


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
