"""Helpers of a run: a process for each further device, which makes trials of the same study."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from autotune.core.deadline import Deadline
from autotune.core.errors import InputError, OutOfTimeError
from autotune.core.processors import usable_processors
from autotune.measuring.channel import LOOK_S
from autotune.measuring.failure import Failure
from autotune.measuring.processes import Handler, WorkerProcess

if TYPE_CHECKING:
    from autotune.operations.problem import Problem
    from autotune.serving.target import Target
    from autotune.tuning.budget import Budget
    from autotune.tuning.context import TuningContext
    from autotune.tuning.settings import Run

GRACE_S = 1.5
"""Seconds in which a helper ends the trial in hand, and gives up what else it holds."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Task:
    """A helper's part of a run; it travels to a process.

    Attributes:
        problem: what is computed.
        target: where it runs.
        device: the helper's own.
        families: that are searched.
        extra_families: folders with families of the user's own.
        cache: where it was asked for.
        run: settings, with the helper's share of trials and the seconds that are left.
    """

    problem: Problem
    target: Target
    device: int
    families: tuple[str, ...]
    extra_families: tuple[Path, ...]
    cache: Path | None
    run: Run


class Helpers:
    """The parent's side. Used as a context manager, which leaves no process behind.

    Args:
        entry: makes what answers a `Task` in a helper's process.
        context: what can be tried, and on which device by the parent.
        run: settings; its trials and compilers are shared out.
        devices: of the helpers; none makes no helpers.

    Attributes:
        own: the settings for the parent's share.
        pids: of the processes, once they have begun.

    Raises:
        InputError: a device is not like the parent's.
    """

    def __init__(
        self,
        entry: Callable[[], Handler],
        context: TuningContext,
        run: Run,
        devices: Sequence[int] = (),
    ) -> None:
        self._context = context
        self._devices = tuple(devices)[: run.trials - 1]
        count = len(self._devices) + 1
        self._share = replace(
            run,
            trials=run.trials // count,
            workers=max(1, (run.workers or usable_processors()) // count),
            finals=False,
            progress=None,
        )
        left = run.trials - len(self._devices) * self._share.trials
        self.own = replace(run, trials=left, workers=self._share.workers) if devices else run
        self.pids: tuple[int, ...] = ()
        self._ending = Deadline()
        self._workers = [WorkerProcess(entry, replies=int) for _ in self._devices]
        for device in self._devices:
            there = context.target.device(context.problem, device)
            if there.fingerprint != context.device.fingerprint:
                raise InputError(
                    f"devices must be alike, and {device} is {there.fingerprint.name} where the "
                    f"first is {context.device.fingerprint.name}, or is set otherwise: tune on "
                    "each by itself"
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            worker.close(grace_s=0)

    def begin(self, study: str, deadline: Deadline) -> None:
        """Have all of them make trials of a study until a run is over."""
        for worker in self._workers:
            worker.spawn()
        for worker, device in zip(self._workers, self._devices, strict=True):
            context, seconds = self._context, deadline.remaining_s
            task = Task(
                context.problem,
                context.target,
                device,
                tuple(context.union.spaces),
                context.extra_families,
                context.wanted_cache,
                replace(self._share, study=study, timeout=seconds),
            )
            worker.submit(task, math.inf, self._ending)
        self.pids = tuple(worker.pid for worker in self._workers if worker.pid is not None)

    def finish(self, budget: Budget) -> None:
        """Wait until they have made their shares; with the run's time, or a stop, they end."""
        finished = threading.Event()
        threading.Thread(target=self._stop, args=(budget, finished), daemon=True).start()
        try:
            for worker, device in zip(self._workers, self._devices, strict=True):
                with contextlib.suppress(OutOfTimeError):
                    reply = worker.collect()
                    if isinstance(reply, Failure):
                        _log.warning("the helper on device %d was lost: %s", device, reply.reason)
        finally:
            finished.set()

    def _stop(self, budget: Budget, finished: threading.Event) -> None:
        """Have them end when the time is over or a stop is asked for, unless they have."""
        while not (budget.interrupted or budget.deadline.over):
            if finished.wait(LOOK_S):
                return
        for worker in self._workers:
            if (pid := worker.pid) is not None:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGTERM)
        self._ending.hasten(GRACE_S, 0.0)
