"""Thread schedules: which tiles of a shared loop a thread takes, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SCHEDULES = ("static", "dynamic", "guided")
"""The kinds there are, as OpenMP's `schedule` clause names them."""


@dataclass(frozen=True, slots=True)
class ThreadSchedule:
    """How threads divide the tiles of a loop, as OpenMP 5.2 defines it (section 11.5.3).

    Attributes:
        kind: "static" settles beforehand who takes what; in a "dynamic" one a free thread takes
            the next chunk, and in a "guided" one chunks shrink as the tiles run out.
        chunk: tiles in a chunk, the fewest of them if guided. 0 means that none was chosen:
            static then gives each thread one run of tiles, the others take 1.

    Raises:
        InputError: there is no such kind, or the chunk is negative.
    """

    kind: str
    chunk: int = 0

    def __post_init__(self) -> None:
        if self.kind not in SCHEDULES:
            raise InputError(f"schedule must be one of {', '.join(SCHEDULES)}, got {self.kind!r}")
        if self.chunk < 0:
            raise InputError(f"chunk must be a whole number >= 0, got {self.chunk}")

    def __str__(self) -> str:
        return f"{self.kind},{self.chunk}" if self.chunk else self.kind

    def chunks(self, count: int, threads: int) -> Iterator[range]:
        """The chunks that `count` tiles fall into, in the order in which they are handed out.

        A guided chunk is ceil(tiles left / (2 threads)): OpenMP asks for a size proportional to
        tiles left / threads, and half of it keeps the first thread from taking more than it
        could finish in time, whatever the tiles at the front cost.
        """
        if self.kind == "static" and self.chunk == 0:
            for share in self.shares(count, threads):
                yield from share
            return
        first = 0
        while first < count:
            size = max(1, self.chunk)
            if self.kind == "guided":
                size = max(size, -(-(count - first) // (2 * threads)))
            yield range(first, min(first + size, count))
            first += size

    def shares(self, count: int, threads: int) -> tuple[tuple[range, ...], ...]:
        """The chunks of each thread, by its number.

        Raises:
            InputError: the schedule is not static: who takes what is settled as the loop runs.
        """
        if self.kind != "static":
            raise InputError(f"only a static schedule has shares beforehand, got {self}")
        if self.chunk == 0:
            bounds = [count * thread // threads for thread in range(threads + 1)]
            runs = (range(bounds[t], bounds[t + 1]) for t in range(threads))
            return tuple((run,) if run else () for run in runs)
        chunks = list(self.chunks(count, threads))
        return tuple(tuple(chunks[thread::threads]) for thread in range(threads))

    def best_speedup(self, costs: Sequence[float], threads: int) -> float:
        """The speedup over one thread if nothing but the tiles cost time.

        Args:
            costs: of each tile, in any unit of time.
            threads: how many there are.
        """
        finished = [0.0] * threads
        if self.kind == "static":
            for thread, share in enumerate(self.shares(len(costs), threads)):
                finished[thread] = sum(sum(costs[chunk.start : chunk.stop]) for chunk in share)
        else:
            for chunk in self.chunks(len(costs), threads):
                free = finished.index(min(finished))
                finished[free] += sum(costs[chunk.start : chunk.stop])
        return sum(costs) / max(finished)
