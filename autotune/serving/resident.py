"""State shared by look-ups: the device, the families and the records, read once and kept.

`load` with match="exact" or "stale" takes what is kept only where device, families, database and
layers are as they were when it is called. With "predicted" and "nearest", for the thousands of
shapes of a program, they are those that the process has read before, unless the user's database
has changed since. What this process writes is seen at once, what others write after `OTHERS_S`;
the device, as the process may use it, and the families are looked at again after `LOOK_AGAIN_S`.
Until then a look-up makes no system call.
"""

from __future__ import annotations

import functools
import os
import time
from typing import TYPE_CHECKING, Any

from autotune.core import session
from autotune.core.forking import LOADING
from autotune.core.paths import CacheLocations
from autotune.families.catalog import catalog
from autotune.families.program_cache import ProgramCache
from autotune.serving.fitting import Fits
from autotune.serving.predicting import Predictor, predictor_of
from autotune.store.schema import written
from autotune.store.sources import VARIABLE, kept_sources, layer_states, shapes, state_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence
    from pathlib import Path

    from autotune.core.device import Device
    from autotune.families.index import Families
    from autotune.operations.problem import Problem
    from autotune.serving.target import Target

LOOK_AGAIN_S = 1.0
"""Seconds that the device and the families are taken to be as they were."""

OTHERS_S = 0.1
"""Seconds that other processes are taken to have written nothing."""


class Resident:
    """All that look-ups of one operation's problems, of equal caps, on one device share.

    Attributes:
        place: the user's cache.
        device: as this process may use it.
        families: those there are, by name.
        sources: of records; each is asked once for the same thing.
        programs: where emitted sources are.
        fits: validity of candidates.
        found: the `Lookup`s of before, by problem and match.
    """

    def __init__(
        self,
        problem: Problem,
        target: Target,
        name: int | str | None,
        place: CacheLocations,
        extra_families: Sequence[Path],
    ) -> None:
        self._operation = problem.defined
        self._target = target
        self._name = name
        self._extra = tuple(extra_families)
        self._languages = {target.name: target.language()}
        self.place = place
        self._written = written()
        self._state = state_of(place.database)
        self.programs = ProgramCache.of(place)
        self.device = self._device(problem)
        self._layers = layer_states(self.device.fingerprint.kind)
        self.families = self._catalog(self._operation.name)
        self.fits = Fits(self.families, self.device.limits)
        self.sources = kept_sources(place.database, self.device.fingerprint.kind)
        self.found: dict[tuple[Problem, str], Any] = {}
        self._wait(time.monotonic() + LOOK_AGAIN_S)

    @functools.cached_property
    def predictor(self) -> Predictor:
        """Chooses for problems without records."""
        operation, families = self._operation.name, self.families
        if product := self._operation.product:  # of which families of the same names were timed
            operation, families = product, self._catalog(product).only(families)
        return predictor_of(self.sources, operation, self._target.name, families, self.device)

    @functools.cached_property
    def shapes(self) -> frozenset[tuple[object, ...]]:
        """Sizes of which there are records of the device."""
        digest = self.device.fingerprint.digest
        return shapes(self.sources, self._operation, self._target.name, digest)

    def holds(self, problem: Problem, *, now: bool = False) -> bool:
        """True if all is as it was; with `now` everything is looked at, not only what is due."""
        count = written()
        if not now and time.monotonic() < self._until and count == self._written:
            return True
        if state_of(self.place.database) != self._state:
            return False
        self._written = count  # not before the look: another thread would go by it
        if not now and time.monotonic() < self._again:
            self._wait(self._again)
            return True
        if now or self._target.changes:
            device = self._device(problem)
            if (device.limits, device.fingerprint, device.toolchain) != (
                self.device.limits,
                self.device.fingerprint,
                self.device.toolchain,
            ):
                return False
        if now and layer_states(self.device.fingerprint.kind) != self._layers:
            return False
        if self._catalog(self._operation.name).digests != self.families.digests:
            return False
        self._wait(time.monotonic() + LOOK_AGAIN_S)
        return True

    def _wait(self, again: float) -> None:
        """The database has just been looked at; the rest is due at `again`."""
        self._again = again
        self._until = min(again, time.monotonic() + OTHERS_S)

    def _device(self, problem: Problem) -> Device:
        return self._target.runnable(self._target.device(problem, self._name))

    def _catalog(self, operation: str) -> Families:
        # Digests are kept with the programs, where this process may write.
        name, keep = self._target.name, self.programs.folder / self._target.name
        return catalog(name, operation, self._extra, keep, languages=self._languages, strict=False)


_RESIDENT: dict[Hashable, Resident] = session.keep("look-ups", {})


def resident(
    problem: Problem,
    target: Target,
    name: int | str | None,
    cache: str | Path | None,
    extra_families: Sequence[Path],
    *,
    now: bool,
) -> Resident:
    """The shared state of look-ups like this one, by the arguments of `autotune.load`.

    See `Resident.holds` for `now`.
    """
    caps = target.caps(problem)
    if caps is None:
        return Resident(problem, target, name, CacheLocations.at(cache), extra_families)
    variables = map(os.environ.get, ("AUTOTUNE_CACHE", "AUTOTUNE_FAMILIES", VARIABLE))
    key = (target.name, caps, problem.operation, name, cache, *extra_families, *variables)
    found = _RESIDENT.get(key)
    if found is not None and found.holds(problem, now=now):
        return found
    with LOADING:
        before, found = found, _RESIDENT.get(key)  # another thread may have been faster
        if found is None or found is before or not found.holds(problem, now=now):
            place = CacheLocations.at(cache)
            found = _RESIDENT[key] = Resident(problem, target, name, place, extra_families)
    return found


# A child by fork may not have the threads that its parent has.
session.at_fork(child=_RESIDENT.clear)
