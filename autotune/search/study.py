"""Opening studies: one Optuna study per problem, target and device, shared by its workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import optuna
from optuna.study import StudyDirection

from autotune.core.errors import StudyError
from autotune.core.objective import TIME, Objective
from autotune.search.internals import deferred_interrupt, quiet
from autotune.search.reading import SPACE, SUBJECT
from autotune.search.samplers import make_sampler
from autotune.search.storage import close_storage, open_storage, storage_errors
from autotune.search.tuning_study import TuningStudy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autotune.search.model import Prior
    from autotune.space import SearchSpace, SpaceUnion


@dataclass(frozen=True, slots=True)
class Subject:
    """A problem, where it runs, and on what.

    Attributes:
        operation: the operation's name.
        problem: every field of the problem.
        target: the target's name.
        device: the device's name, for people.
        fingerprint: the digest of the device's fingerprint.
        objective: the name of what trials cost by.
    """

    operation: str
    problem: Mapping[str, Any]
    target: str
    device: str
    fingerprint: str
    objective: str = "time"

    def key(self) -> dict[str, Any]:
        """Every field as JSON-able values."""
        return asdict(self)

    def differences(self, stored: object) -> list[str]:
        """Differences of a stored key: "dtype is float32 there and float64 here"."""
        there = stored if isinstance(stored, Mapping) else {}
        problem = there.get("problem")
        there = {"objective": "time", **(problem if isinstance(problem, Mapping) else {}), **there}
        here = {"operation": self.operation, **self.problem, "target": self.target}
        here["objective"] = self.objective
        found = [
            f"{name} is {there.get(name)} there and {value} here"
            for name, value in here.items()
            if there.get(name) != value
        ]
        if there.get("fingerprint") != self.fingerprint:
            other = "another " if self.device == there.get("device") else ""
            found.append(f"it is of {there.get('device')}, and this is {other}{self.device}")
        return found


def open_study(
    space: SearchSpace | SpaceUnion,
    storage: str | None,
    name: str,
    folder: Path,
    sampler: str = "auto",
    seed: int = 0,
    prior: Sequence[Prior] = (),
    subject: Subject | None = None,
    objective: Objective = TIME,
) -> TuningStudy[Any]:
    """Create a study, or continue the one of that name; its points are those of the space.

    Args:
        space: where its candidates come from.
        storage: an Optuna database URL; None for a journal file in `folder`.
        name: the study's name.
        folder: where journal files are kept; created when missing.
        sampler: a sampler's name, see `make_sampler`, as for `seed` and `prior`.
        seed: for the sampler.
        prior: what is expected before anything is measured.
        subject: what its trials are of; None where only the space matters.
        objective: what trials cost by; the subject names it.

    Raises:
        StudyError: the storage cannot be read, or the study is of another space or subject, or
            not ours.
        CacheError: the folder cannot be written.
        UnknownNameError: there is no such sampler.
        MissingDependencyError: the sampler or the database needs a package.
    """
    feasible = make_sampler(sampler, space, seed, prior)
    opened = open_storage(storage, name, folder)
    try:
        with quiet(), deferred_interrupt(), storage_errors(name):
            study = optuna.create_study(
                storage=opened, study_name=name, sampler=feasible, load_if_exists=True
            )
            _check(study, space.digest, subject)
    except BaseException:
        close_storage(opened)
        raise
    return TuningStudy(study, feasible, opened, objective)


def _check(study: optuna.Study, digest: str, subject: Subject | None) -> None:
    """Refuse a study of something else; mark a new one as ours."""
    attrs: dict[str, Any] = study.user_attrs
    stored = attrs.get(SPACE)
    begun = bool(study.get_trials(deepcopy=False))
    fault = remark = ""
    if stored is None and (attrs or begun):
        fault = "was not made by autotune"
    elif study.directions != [StudyDirection.MINIMIZE]:
        fault = "does not minimise one value"
    elif subject is not None and begun and attrs.get(SUBJECT) is None:
        fault = "holds trials and does not say of which problem and device"
        remark = "; what it holds is kept"
    elif (
        subject is not None
        and SUBJECT in attrs
        and (differences := subject.differences(attrs[SUBJECT]))
    ):
        fault = f"is of something else: {'; '.join(differences)}"
    elif stored not in (None, digest):
        fault = f"belongs to search space {stored}, this one is {digest}"
    if fault:
        raise StudyError(
            f"study {study.study_name!r} {fault}: choose another name with --study{remark}"
        )
    if stored is None:
        study.set_user_attr(SPACE, digest)
    if subject is not None and SUBJECT not in attrs:
        study.set_user_attr(SUBJECT, subject.key())
