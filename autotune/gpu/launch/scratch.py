"""Device memory that launches use and nobody sees: workspaces and transposed copies."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from autotune.core.errors import LaunchError
from autotune.gpu.driver import activated, driver

if TYPE_CHECKING:
    from autotune.gpu.interface import Event, Memory

Allocate: TypeAlias = Callable[[Any, str, int, int], int]
"""``allocate(stream, name, size, zeroed)``: address of memory for one call on a stream. Its first
``zeroed`` bytes are zero; kernels leave them so."""

_PER_THREAD_STREAM = 2  # CU_STREAM_PER_THREAD

_STEP = 64 * 2**20
"""Bytes by which a block at most is made larger than what is asked for."""


@dataclass(slots=True)
class _Block:
    """Memory that kernels use in turns, in the order of one stream.

    Attributes:
        memory: the memory.
        size: bytes.
        zeroed: how many of the first bytes are zero when all that is enqueued now is done.
    """

    memory: Memory
    size: int
    zeroed: int = 0


class Scratch:
    """Memory for launches on one device, kept for those that come next.

    It belongs to streams, so that launches on several streams do not disturb each other. What
    captured calls use belongs to their graph, on each stream of the capture: a graph may be
    replayed on any stream, but like the matrices that it works on, its memory serves one replay
    at a time.
    """

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal
        self._blocks: dict[tuple[object, ...], _Block] = {}
        self._captured: dict[tuple[object, ...], _Block] = {}
        self._lent: list[tuple[Callable[[], bool], _Block]] = []
        self._lock = threading.RLock()

    def lend(self, stream: Any, enqueue: Callable[[Allocate], None]) -> None:
        """Enqueue what uses memory; it may be used until all of that is done.

        Another thread's launches on this stream, and in the same memory, come before all of these
        or after all of them.
        """
        with self._lock:
            # The engine's own captures, on its own streams, find their memory allocated.
            if stream.__class__ is not int or not driver().is_capturing(stream):
                enqueue(self._allocate)
            else:
                enqueue(self._allocate_for_graph)

    def free(self) -> None:
        """Give all of it back; nothing that uses it may be enqueued any more."""
        with self._lock, activated(self._ordinal):
            for block in self._blocks.values():
                block.memory.free()
            self._blocks.clear()

    def _allocate(self, stream: Any, name: str, size: int, zeroed: int) -> int:
        """Memory for the launches on one stream, allocated when first needed."""
        handle, owner = _order_of(stream)
        # Launches with workspaces of one size share it, if as much of it is to be zero.
        key = (name, size, zeroed, handle, owner)
        block = self._blocks.get(key)
        if block is None:
            with activated(self._ordinal):
                block = _Block(driver().allocate(max(size, 1)), size)
                if zeroed:
                    driver().enqueue_zeros(int(block.memory), zeroed, handle)
            self._blocks[key] = block
        return int(block.memory)

    def _allocate_for_graph(self, stream: int, name: str, size: int, zeroed: int) -> int:
        """Memory for the calls on one stream that are captured into a graph, until it is gone.

        Replays find the first bytes as the last one left them, so calls that have others zero
        have other memory.
        """
        key = (driver().capture_of(stream), stream, name, zeroed)
        block = self._captured.get(key)
        if block is None or block.size < size:
            block = self._captured[key] = self._reclaimed(size, zeroed) or self._made(size, zeroed)
            self._lent.append((driver().watch_graph(stream), block))
        return int(block.memory)

    def _reclaimed(self, size: int, zeroed: int) -> _Block | None:
        """A block whose graph is gone, if one will do; others of those are freed."""
        gone = [block for is_gone, block in self._lent if is_gone()]
        known = {id(block) for block in gone}
        self._lent = [each for each in self._lent if id(each[1]) not in known]
        self._captured = {k: b for k, b in self._captured.items() if id(b) not in known}
        found = next((b for b in gone if b.size >= size and b.zeroed == zeroed), None)
        with activated(self._ordinal):
            for block in gone:
                if block is not found:
                    block.memory.free()
        return found

    def _made(self, size: int, zeroed: int) -> _Block:
        """A block whose first bytes are zero now."""
        with activated(self._ordinal):
            block = _Block(driver().allocate(max(size, 1)), size, zeroed)
            if zeroed:
                stream = driver().stream(blocking=False)
                driver().enqueue_zeros(int(block.memory), zeroed, stream.handle)
                stream.synchronize()
        return block


class SharedScratch(Scratch):
    """The same for kernels of all kinds and sizes: one block for each stream and purpose.

    Where a launch needs a larger one, the block is replaced. So no address may outlive a launch:
    this is not for launches that the engine captures itself, to replay them.
    """

    def _allocate(self, stream: Any, name: str, size: int, zeroed: int) -> int:
        handle, owner = _order_of(stream)
        key = (name, handle, owner)
        block = self._blocks.get(key)
        if block is None or block.size < size:
            with activated(self._ordinal):
                if block is not None:
                    block.memory.free()  # which waits for what was enqueued with it
                    del self._blocks[key]
                    size = max(size, min(2 * block.size, block.size + _STEP))
                block = _Block(driver().allocate(max(size, 1)), size)
            self._blocks[key] = block
        if zeroed > block.zeroed:
            with activated(self._ordinal):
                missing = zeroed - block.zeroed
                driver().enqueue_zeros(int(block.memory) + block.zeroed, missing, handle)
        block.zeroed = zeroed  # what comes after that is the kernels' own
        return int(block.memory)


class OwnScratch(Scratch):
    """One block, for launches that find in it what earlier ones left, whatever their streams.

    Each waits for the last one, as far as that is in the same graph, or in none either.

    Args:
        ordinal: the driver's number of the device.
        size: bytes.
    """

    def __init__(self, ordinal: int, size: int) -> None:
        super().__init__(ordinal)
        self._last: dict[int | None, tuple[tuple[int, int], Event | None]] = {}
        with activated(ordinal):
            self._blocks[()] = _Block(driver().allocate(size), size)

    def lend(self, stream: Any, enqueue: Callable[[Allocate], None]) -> None:
        """See `Scratch.lend`."""
        with self._lock:
            if not self._blocks:
                raise LaunchError("what was kept of an operand was freed: keep it again")
            here, order = driver(), _order_of(stream)
            handle, owner = order
            capture = here.capture_of(handle)
            last, event = self._last.get(capture, (order, None))
            if last != order:
                with activated(self._ordinal):
                    here.wait_for(handle, event or here.mark(last[0]))
            enqueue(self._allocate)
            event = None
            if owner:  # no other thread can mark this one's default stream later
                with activated(self._ordinal):
                    event = here.mark(handle)
            self._last = {key: each for key, each in self._last.items() if key is None}
            self._last[capture] = order, event

    def _allocate(self, stream: Any, name: str, size: int, zeroed: int) -> int:
        return int(self._blocks[()].memory)


def _order_of(stream: Any) -> tuple[int, int]:
    """Stream and thread that launches have in common if they come one after the other."""
    handle = stream if stream.__class__ is int else getattr(stream, "handle", 0)
    # One handle stands for the default stream of whichever thread asks.
    return handle, threading.get_ident() if handle == _PER_THREAD_STREAM else 0
