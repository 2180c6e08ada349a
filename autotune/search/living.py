"""Workers of one study that come and go: signs of life, and what the lost leave behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import optuna
from optuna.trial import FrozenTrial

from autotune.search.claims import ORPHANED, Owner, fail, orphans
from autotune.search.feasible import FeasibleSampler
from autotune.search.internals import quiet

BEAT_S = 20.0
"""Between two signs of life of a worker, and between two looks for those that are gone."""

_HEARTBEAT = "autotune:heartbeat:"


class Living:
    """This worker among those of a study.

    Args:
        study: shared by them.
        sampler: of this worker; what others have lost is first in it.
        finish: ends the trial of a worker that had measured, and not ended it; false where it had
            not measured.
    """

    def __init__(
        self,
        study: optuna.Study,
        sampler: FeasibleSampler,
        finish: Callable[[FrozenTrial], bool] = lambda trial: False,
    ) -> None:
        self._study = study
        self._sampler = sampler
        self._finish = finish
        self._looked = time.monotonic()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Give the first sign of life; a thread gives the rest, whatever a trial takes."""
        if self._thread is None:
            self._beat()
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Give no more."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def look(self) -> None:
        """Read the trials again; reclaim if that was some time ago, or nothing else is left."""
        self._sampler.refresh(self._study)
        if self._sampler.ledger.exhausted or time.monotonic() - self._looked > BEAT_S:
            self.reclaim()

    def reclaim(self) -> None:
        """End the trials of workers that are gone; what they did not measure is next here."""
        self._looked = time.monotonic()
        heartbeats = {
            key.removeprefix(_HEARTBEAT): float(value)
            for key, value in self._study.user_attrs.items()
            if key.startswith(_HEARTBEAT)
        }
        for trial in orphans(self._study, heartbeats):
            if self._finish(trial):
                continue
            row = self._sampler.ledger.rows.get(trial.number)
            if fail(self._study, trial, ORPHANED) and row is not None:
                self._sampler.first.append(row)
        self._sampler.refresh(self._study)

    def _beat(self) -> None:
        self._study.set_user_attr(_HEARTBEAT + str(Owner.current()), time.time())

    def _run(self) -> None:
        while not self._ended.wait(BEAT_S):
            # Whoever asks or tells next finds a storage that fails, and says so.
            with quiet(), suppress(Exception):
                self._beat()
