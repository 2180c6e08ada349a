"""Tuning contexts: where problems are tuned, and all that the trials of one need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.core import arguments
from autotune.core.errors import InputError
from autotune.core.objective import TIME, Objective
from autotune.core.paths import CacheLocations
from autotune.core.version import __version__
from autotune.families.offers import refusal
from autotune.families.program_cache import ProgramCache
from autotune.runtime.loading import check_asked
from autotune.search import Subject, open_study
from autotune.serving.predicting import Predictor, predictor_of
from autotune.serving.target import Target, Work
from autotune.space import SpaceUnion
from autotune.store import TuningCache, record_sources
from autotune.targets.families import load_families, select_families
from autotune.targets.registry import make_target

if TYPE_CHECKING:
    from autotune.core.configuration import Candidate
    from autotune.core.device import Device
    from autotune.core.measurement import Measurement
    from autotune.families.family import KernelFamily
    from autotune.measuring.evaluator import Evaluator
    from autotune.operations.problem import Problem
    from autotune.search import TuningStudy
    from autotune.search.model import Prior
    from autotune.tuning.settings import Run


def surroundings(device: Device) -> dict[str, Any]:
    """The machine and its software, on which trials depend, as JSON-able values."""
    return {
        "version": __version__,
        "fingerprint": device.fingerprint.key(),
        "limits": device.limits.names(),
        "toolchain": dict(device.toolchain),
        "state": dict(device.state),
    }


@dataclass(frozen=True, slots=True)
class DeviceContext:
    """A device on which problems are tuned or surveyed.

    Attributes:
        target: where programs run.
        device: as the target read it.
        families: by name, also those that are not searched.
        store: the cache.
        programs: where sources and binaries go.
    """

    target: Target
    device: Device
    families: Mapping[str, KernelFamily]
    store: TuningCache
    programs: ProgramCache

    def evaluator(self, problem: Problem, run: Run, beside: Evaluator | None = None) -> Evaluator:
        """An evaluator of a problem, with the processes of another one if one is given."""
        return self.target.evaluator(
            Work(
                problem,
                self.families,
                self.device,
                self.programs,
                run.effort,
                run.workers,
                run.seed,
            ),
            beside,
        )

    def keep(
        self, study: str, problem: Problem, rows: Iterable[tuple[Candidate, Measurement]]
    ) -> None:
        """Store measurements of a study in the cache; those that are there stay."""
        fingerprint, target = self.device.fingerprint, self.target.name
        self.store.add_measurements(study, fingerprint, problem, target, rows)

    def predictor(self, operation: str) -> Predictor:
        """The cost models of an operation on the device."""
        sources = record_sources(self.store.path, self.device.fingerprint.kind)
        families, name = self.families, self.target.name
        if product := next((each.defined.product for each in families.values()), ""):
            of_product = load_families(target=name, operation=product)
            families = {each: of_product[each] for each in families if each in of_product}
        return predictor_of(sources, product or operation, name, families, self.device)


@dataclass(frozen=True, slots=True)
class TuningContext(DeviceContext):
    """A problem, where it is tuned, and what can be tried.

    Attributes:
        problem: what is computed.
        union: the spaces to search, as pruned for this device and problem; empty ones are left
            out.
        studies: folder of the studies' journals.
        wanted_device: which GPU was asked for; None for the first.
        wanted_cache: where the cache was asked for; None for the default place.
        extra_families: folders with families of the user's own that take part.
    """

    problem: Problem
    union: SpaceUnion
    studies: Path
    wanted_device: int | str | None
    wanted_cache: Path | None
    extra_families: tuple[Path, ...]

    @classmethod
    def of(
        cls,
        problem: Problem,
        *,
        target: str | Target | None,
        device: int | str | None,
        families: Sequence[str],
        extra_families: Sequence[Path],
        cache: str | Path | None,
        options: Mapping[str, Any],
    ) -> TuningContext:
        """Read the device, find the families, and make sure that the cache can be written.

        Args:
            problem: what is computed.
            target: where it runs; None takes the best this machine has.
            device: which GPU, by number or (part of) its name; None takes the first.
            families: names of the families to search; empty takes all that can serve the problem.
            extra_families: folders with families of the user's own.
            cache: folder or database of the user's cache; None takes the default place.
            options: what the target can be told.

        Raises:
            InputError: something cannot be used, or nothing is valid for the problem there.
            CacheError: the cache cannot be written.
        """
        families = arguments.texts("families", families)
        extra_families = arguments.paths("extra_families", extra_families)
        check_asked(problem, target, device, cache)
        made = make_target(target, options)
        place = CacheLocations.at(cache).create()
        store = TuningCache(place.database)
        store.check_writable()
        read = made.device(problem, device)
        read.check_here()
        found = load_families(target=made.name, operation=problem.operation, extra=extra_families)
        chosen = select_families(found, families)
        if (reason := refusal(chosen, problem)) is not None:
            raise InputError(reason)
        able = {n: family for n, family in found.items() if family.unsupported(problem) is None}
        searched = {name: able[name] for name in chosen if name in able}
        spaces = {name: family.space(problem, read.limits) for name, family in searched.items()}
        spaces = {name: space for name, space in spaces.items() if space.size}
        if not spaces:
            raise InputError(
                f"no configuration of {', '.join(searched)} is valid for {problem.label} on "
                f"{read.fingerprint.name}: `autotune space` shows what pruned them"
            )
        return cls(
            made,
            read,
            searched | able,
            store,
            ProgramCache.of(place),
            problem,
            SpaceUnion(spaces),
            place.studies,
            device,
            None if cache is None else Path(cache),
            extra_families,
        )

    @contextmanager
    def open(
        self, run: Run, beside: Evaluator | None = None, prior: Sequence[Prior] = ()
    ) -> Iterator[tuple[TuningStudy[Candidate], Evaluator]]:
        """The run's study and a running evaluator; both are closed at the end.

        Args:
            run: names the study.
            beside: an evaluator whose processes may be used, see `Target.evaluator`.
            prior: what is expected before anything is measured.

        Raises:
            StudyError: the storage cannot be read, or the study is of something else.
            UnknownNameError: there is no such sampler.
            MissingDependencyError: the sampler, the storage or the target needs a package.
        """
        assert run.study is not None
        with (
            open_study(
                self.union,
                storage=run.storage,
                name=run.study,
                folder=self.studies,
                sampler=run.sampler,
                seed=run.seed,
                prior=prior,
                subject=self.subject_of(run.objective),
                objective=run.objective,
            ) as study,
            self.evaluator(self.problem, run, beside) as evaluator,
        ):
            study.note_run({"sampler": run.sampler, "seed": run.seed, **surroundings(self.device)})
            # A worker that was killed may have told the study and not stored in the cache.
            self.keep(study.name, self.problem, study.measured())
            yield study, evaluator

    def subject_of(self, objective: Objective = TIME) -> Subject:
        """Subject of a study of trials by an objective."""
        return Subject(
            operation=self.problem.operation,
            problem=self.problem.key(),
            target=self.target.name,
            device=self.device.fingerprint.name,
            fingerprint=self.device.fingerprint.digest,
            objective=objective.name,
        )
