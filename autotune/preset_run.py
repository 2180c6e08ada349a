"""Tuning a preset: many problems within one time limit, resumable."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.catalog import load_families, select_families
from autotune.errors import CacheError, InputError, TuningFailedError
from autotune.evaluators.base import Effort
from autotune.paths import CacheLocations, private_folder
from autotune.store import MatchQuality, TuningCache, TuningRecord, find
from autotune.targets import make_target
from autotune.tuner import TuneResult, tune

if TYPE_CHECKING:
    from autotune.device import Device
    from autotune.family import KernelFamily
    from autotune.presets import TuningPreset
    from autotune.problem import Gemm
    from autotune.tuner import Progress

EFFORT = Effort(budget_s=0.1, finals_s=2.0)
"""Less per trial than for a single problem: there are many, and they learn from each other."""

MIN_SEARCH_S = 5.0
"""A search shorter than this is not begun: starting the measurement worker is part of it."""

OVERHEAD_S = 6.0
"""What a problem takes beside searching (starting workers, references, finals), until the run has
seen it for itself."""


class PresetStatus(StrEnum):
    """What became of a problem of a preset."""

    TUNED = "tuned"
    KEPT = "kept"
    """An earlier run of the preset has tuned it, and its record fits exactly and is not noisy."""
    FAILED = "failed"
    NOT_REACHED = "not reached"
    """The time was over before its turn, or the run was interrupted."""


@dataclass(frozen=True, slots=True)
class PresetResult:
    """One problem of a preset run.

    Attributes:
        problem: what was to be tuned.
        study: the study's name: the same in every run of the preset.
        status: what became of it.
        record: the winner's record; None where there is none.
        result: the tuning run; None where there was none.
        reason: one line saying why the problem was not tuned.
    """

    problem: Gemm
    study: str
    status: PresetStatus
    record: TuningRecord | None = None
    result: TuneResult | None = None
    reason: str = ""


Watch = Callable[["Gemm", float], Callable[["Progress"], None] | None]
"""``watch(problem, seconds)``: called before each search; returns its progress callback."""


def run_preset(
    preset: TuningPreset,
    *,
    target: str | None = None,
    device: int | str | None = None,
    families: Sequence[str] = (),
    extra_families: Sequence[Path] = (),
    seconds: float | None = None,
    trials: int | None = None,
    sampler: str = "auto",
    seed: int = 0,
    cache: str | Path | None = None,
    storage: str | None = None,
    workers: int | None = None,
    watch: Watch | None = None,
) -> Iterator[PresetResult]:
    """Tune a preset's problems in turn; yields each as it is done.

    Problems that an earlier run of the same preset has finished, with the same limits and families
    on this device, are kept as long as their record fits exactly; one that was interrupted goes on
    in its study. What one problem leaves of its time, the later ones get.

    Args:
        preset: what to tune.
        target: where to run; None takes the preset's target.
        device: which GPU, by number or (part of) its name; None takes the first.
        families: names of the families to search; empty takes all that can serve a problem.
        extra_families: folders with families of the user's own.
        seconds: limit for the whole run; None takes the preset's.
        trials: limit of trials for each problem; None takes the preset's.
        sampler: as for `tune`.
        seed: as for `tune`.
        cache: as for `tune`.
        storage: as for `tune`.
        workers: as for `tune`.
        watch: shows progress.

    Raises:
        InputError: something above cannot be used; the message says what and why.
        CacheError: the cache cannot be written.
    """
    clock = Clock(preset.seconds if seconds is None else seconds)
    name = target or preset.target
    chosen = make_target(name)
    found = select_families(load_families(target=name, extra=extra_families), families)
    read = chosen.device(None, device)
    place = CacheLocations.at(cache).create()
    store = TuningCache(place.database)
    most = preset.trials if trials is None else trials
    identity = _identity(preset, name, found, read, f"{clock.limit_s:g} s, {most} trials")
    journal = _Journal(place.root / "presets" / f"{preset.name}-{identity}.txt")
    finished = journal.labels()
    digests = {family.name: family.digest for family in found.values()}

    def kept(problem: Gemm) -> TuningRecord | None:
        if problem.label not in finished:
            return None
        records = store.records(read.fingerprint.digest, problem.operation, name)
        match = find(records, problem, name, read, digests, lambda record: None)
        exact = match.record if match.quality is MatchQuality.EXACT else None
        return None if exact is None or exact.noisy else exact

    done = {each.problem: kept(each.problem) for each in preset.problems}
    left = sum(each.seconds for each in preset.problems if done[each.problem] is None)
    stopped = ""
    for each in preset.problems:
        problem = each.problem
        study = f"preset-{preset.name}-{identity}-{problem.label}"
        record = done[problem]
        if record is not None:
            yield PresetResult(problem, study, PresetStatus.KEPT, record)
            continue
        search_s = clock.search_seconds(each.seconds, left)
        left -= each.seconds
        if not stopped and search_s is None:
            stopped = f"too little is left of the {clock.limit_s:g} s: run it again to go on"
        if stopped or search_s is None:
            yield PresetResult(problem, study, PresetStatus.NOT_REACHED, reason=stopped)
            continue
        started = time.monotonic()
        searched = _Searched(None if watch is None else watch(problem, search_s))
        try:
            result = tune(
                problem,
                target=name,
                device=device,
                families=families,
                extra_families=extra_families,
                trials=most,
                timeout=search_s,
                sampler=sampler,
                seed=seed,
                cache=cache,
                storage=storage,
                study=study,
                workers=workers,
                effort=EFFORT,
                progress=searched,
            )
        except TuningFailedError as error:
            yield PresetResult(problem, study, PresetStatus.FAILED, reason=str(error))
            continue
        clock.note_overhead(time.monotonic() - started - searched.seconds)
        if result.interrupted:
            stopped = "interrupted: run it again to go on"
        else:
            journal.add(problem.label)
        yield PresetResult(problem, study, PresetStatus.TUNED, result.best, result)


class Clock:
    """Divides what is left of the time by the problems that are left.

    Args:
        limit_s: seconds for all of them.
    """

    def __init__(self, limit_s: float) -> None:
        if not limit_s > 0:
            raise InputError(f"timeout must be more than 0 seconds, got {limit_s}")
        self.limit_s = limit_s
        self._begun = time.monotonic()
        self._overheads: list[float] = []

    def search_seconds(self, seconds: int, seconds_left: int) -> float | None:
        """How long the next problem may be searched; None when there is no time for it.

        Args:
            seconds: what the problem is meant to take.
            seconds_left: what it and all those after it are meant to take.
        """
        remaining_s = self.limit_s - (time.monotonic() - self._begun)
        seen = self._overheads
        overhead_s = sum(seen) / len(seen) if seen else min(OVERHEAD_S, self.limit_s / 2)
        if remaining_s < overhead_s + MIN_SEARCH_S:
            return None
        return max(MIN_SEARCH_S, remaining_s * seconds / seconds_left - overhead_s)

    def note_overhead(self, seconds: float) -> None:
        """Note what a problem took beside searching."""
        self._overheads.append(seconds)


class _Searched:
    """Follows a search, to know how long it took, and passes its progress on."""

    def __init__(self, progress: Callable[[Progress], None] | None) -> None:
        self._progress = progress
        self.seconds = 0.0

    def __call__(self, progress: Progress) -> None:
        self.seconds = progress.elapsed_s
        if self._progress is not None:
            self._progress(progress)


class _Journal:
    """The problems that runs of one preset have finished, a line each."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def labels(self) -> frozenset[str]:
        try:
            return frozenset(self._path.read_text(encoding="utf-8").split())
        except FileNotFoundError:
            return frozenset()
        except (OSError, UnicodeDecodeError) as error:
            raise CacheError(f"cannot read {self._path} ({error}): remove it") from error

    def add(self, label: str) -> None:
        private_folder(self._path.parent)
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{label}\n")
        except OSError as error:
            raise CacheError(f"cannot write {self._path}: {error.strerror or error}") from error


def _identity(
    preset: TuningPreset,
    target: str,
    families: Mapping[str, KernelFamily],
    device: Device,
    effort: str,
) -> str:
    """Twelve hex digits over all that makes two runs of a preset comparable."""
    parts = [preset.digest, target, device.fingerprint.digest, effort]
    parts += sorted(family.digest for family in families.values())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
