"""What the trials of a problem need, as tuning and sweeping share it, and what they give."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.core.configuration import Candidate
from autotune.core.errors import InputError
from autotune.core.measurement import Measurement
from autotune.core.paths import CacheLocations
from autotune.core.version import __version__
from autotune.families.catalog import load_families, select_families
from autotune.families.offers import refusal
from autotune.families.program_cache import ProgramCache
from autotune.measuring.evaluator import Effort, Evaluator
from autotune.search import Subject, open_study
from autotune.serving.predicting import Predictor, predictor_of
from autotune.serving.target import Target, Work
from autotune.space import SpaceUnion
from autotune.store import TuningCache, record_sources
from autotune.tuning.priors import known_priors

if TYPE_CHECKING:
    from autotune.core.device import Device
    from autotune.families.family import KernelFamily
    from autotune.operations.problem import Problem
    from autotune.search import TuningStudy
    from autotune.search.model import Prior


@dataclass(frozen=True, slots=True)
class TrialResult:
    """One trial of a run: what was tried and what came of it."""

    candidate: Candidate
    measurement: Measurement


@dataclass(frozen=True, slots=True)
class Workplace:
    """What the trials of a problem need: where they run, what can be tried, where it is kept.

    Attributes:
        problem: what is computed.
        target: where it runs.
        device: as the target read it.
        families: those that can serve the problem, by name, also those that are not searched.
        union: the spaces to search, as pruned for this device and problem; empty ones are left
            out.
        place: folders of the cache.
        store: the cache itself.
        wanted_device: which GPU was asked for; None for the first.
        extra_families: folders with families of the user's own that take part.
    """

    problem: Problem
    target: Target
    device: Device
    families: Mapping[str, KernelFamily]
    union: SpaceUnion
    place: CacheLocations
    store: TuningCache
    wanted_device: int | str | None
    extra_families: tuple[Path, ...]

    @classmethod
    def of(
        cls,
        problem: Problem,
        *,
        target: Target,
        device: int | str | None,
        families: Sequence[str],
        extra_families: Sequence[Path],
        cache: str | Path | None,
    ) -> Workplace:
        """Read the device, find the families, and make sure that the cache can be written.

        Raises:
            InputError: something cannot be used, or nothing is valid for the problem there.
            CacheError: the cache cannot be written.
        """
        place = CacheLocations.at(cache).create()
        store = TuningCache(place.database)
        store.check_writable()
        read = target.device(problem, device)
        read.check_here()
        found = load_families(
            target=target.name, operation=problem.operation, extra=extra_families
        )
        usable = _usable(select_families(found, families), problem)
        spaces = {name: family.space(problem, read.limits) for name, family in usable.items()}
        spaces = {name: space for name, space in spaces.items() if space.size}
        if not spaces:
            raise InputError(
                f"no configuration of {', '.join(usable)} is valid for {problem.label} on "
                f"{read.fingerprint.name}: `autotune space` shows what pruned them"
            )
        others = {name: each for name, each in found.items() if each.unsupported(problem) is None}
        return cls(
            problem,
            target,
            read,
            usable | others,
            SpaceUnion(spaces),
            place,
            store,
            device,
            tuple(extra_families),
        )

    @contextmanager
    def open(
        self,
        study: str,
        *,
        storage: str | None,
        sampler: str,
        seed: int,
        workers: int | None,
        effort: Effort | None,
        beside: Evaluator | None = None,
    ) -> Iterator[tuple[TuningStudy[Candidate], Evaluator]]:
        """The study of that name and a running evaluator; both are closed at the end.

        Args:
            study: its name.
            storage: as for `tune`.
            sampler: as for `tune`.
            seed: as for `tune`.
            workers: as for `tune`.
            effort: as for `tune`.
            beside: an evaluator whose processes may be used, see `Target.evaluator`.

        Raises:
            StudyError: the storage cannot be read, or the study is of something else.
            UnknownNameError: there is no such sampler.
            MissingDependencyError: the sampler, the storage or the target needs a package.
        """
        with (
            open_study(
                self.union,
                storage=storage,
                name=study,
                folder=self.place.studies,
                sampler=sampler,
                seed=seed,
                prior=self._priors() if sampler == "auto" else (),
                subject=self.subject,
            ) as opened,
            self.target.evaluator(
                Work(
                    self.problem,
                    self.families,
                    self.device,
                    ProgramCache.of(self.place),
                    effort,
                    workers,
                    seed,
                ),
                beside,
            ) as evaluator,
        ):
            opened.note_run({"sampler": sampler, "seed": seed, **self.surroundings})
            # A worker that was killed may have told the study and not stored in the cache.
            self.keep(study, opened.measured())
            yield opened, evaluator

    @property
    def subject(self) -> Subject:
        """What the trials are of."""
        return Subject(
            operation=self.problem.operation,
            problem=self.problem.key(),
            target=self.target.name,
            device=self.device.fingerprint.name,
            fingerprint=self.device.fingerprint.digest,
        )

    @property
    def surroundings(self) -> dict[str, Any]:
        """What else the trials depend on, as JSON-able values: the machine and its software."""
        return {
            "version": __version__,
            "fingerprint": self.device.fingerprint.key(),
            "limits": self.device.limits.names(),
            "toolchain": dict(self.device.toolchain),
            "state": dict(self.device.state),
        }

    @property
    def predictor(self) -> Predictor:
        """What models know of the problem's operation on the device."""
        sources = record_sources(self.place.database, self.device.fingerprint.kind)
        return predictor_of(
            sources, self.problem.operation, self.target.name, self.families, self.device
        )

    def keep(self, study: str, rows: Iterable[tuple[Candidate, Measurement]]) -> None:
        """Store measurements of a study in the cache; those that are there stay."""
        fingerprint, target = self.device.fingerprint, self.target.name
        self.store.add_measurements(study, fingerprint, self.problem, target, rows)

    def _priors(self) -> list[Prior]:
        families = {name: self.families[name] for name in self.union.spaces}
        return known_priors(
            self.problem, self.target, self.device, families, self.store, self.predictor
        )


def _usable(families: Mapping[str, KernelFamily], problem: Problem) -> dict[str, KernelFamily]:
    """The families that can serve a problem; an error that says why when none can."""
    if (reason := refusal(families, problem)) is not None:
        raise InputError(reason)
    return {
        name: family for name, family in families.items() if family.unsupported(problem) is None
    }
