"""Device memory that launches use and nobody sees: workspaces and transposed copies."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from autotune.gpu.nvidia.driver.capture import GraphMemory, enqueue_zeros, is_capturing
from autotune.gpu.nvidia.driver.context import activated
from autotune.gpu.nvidia.driver.interface import driver

if TYPE_CHECKING:
    from autotune.gpu.nvidia.driver.interface import Memory

Allocate: TypeAlias = Callable[[Any, str, int, int], int]
"""``allocate(stream, name, size, zeroed)``: address of memory for one call on a stream. Its first
``zeroed`` bytes are zero; kernels leave them so."""

_PER_THREAD_STREAM = 2  # CU_STREAM_PER_THREAD

_STEP = 64 * 2**20
"""Bytes by which a block at most is made larger than what is asked for."""


class Scratch:
    """Memory for launches on one device, kept for those that come next.

    It belongs to streams, so that launches on several streams do not disturb each other; that of
    calls which are captured belongs to the graph (`GraphMemory`), which may be launched on any
    stream.

    Args:
        ordinal: the driver's number of the device.
    """

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal
        self._kept: dict[tuple[str, int, int, int, int], Memory] = {}
        self._lock = threading.RLock()

    def lend(self, stream: Any, enqueue: Callable[[Allocate], None]) -> None:
        """Enqueue what uses memory; it may be used until all of that is done.

        Another thread's launches on this stream, and in the same memory, come before all of these
        or after all of them.

        Args:
            stream: that they come to; see `autotune.gpu.launch.launch.Launch`.
            enqueue: enqueues them, given what gives memory.
        """
        with self._lock:
            # The engine's own captures, on its own streams, find their memory allocated.
            if stream.__class__ is not int or not is_capturing(stream):
                enqueue(self._allocate)
                return
            captured = GraphMemory(stream)
            try:
                enqueue(captured.allocate)
            finally:
                captured.free()

    def free(self) -> None:
        """Give all of it back; nothing that uses it may be enqueued any more."""
        with self._lock, activated(self._ordinal):
            for memory in self._kept.values():
                memory.free()
            self._kept.clear()

    def _allocate(self, stream: Any, name: str, size: int, zeroed: int) -> int:
        """Memory for the launches on one stream, allocated when first needed."""
        handle, owner = _order_of(stream)
        # Launches with workspaces of one size share it, if as much of it is to be zero.
        key = (name, size, zeroed, handle, owner)
        found = self._kept.get(key)
        if found is None:
            with activated(self._ordinal):
                found = driver().allocate(max(size, 1))
                if zeroed:
                    enqueue_zeros(int(found), zeroed, handle)
            self._kept[key] = found
        return int(found)


class SharedScratch(Scratch):
    """The same for kernels of all kinds and sizes: one block for each stream and purpose.

    Where a launch needs a larger one, the block is replaced. So no address may outlive a launch:
    this is not for launches that the engine captures itself, to replay them.

    Args:
        ordinal: the driver's number of the device.
    """

    def __init__(self, ordinal: int) -> None:
        super().__init__(ordinal)
        self._blocks: dict[tuple[str, int, int], _Block] = {}

    def free(self) -> None:
        """Give all of it back; nothing that uses it may be enqueued any more."""
        with self._lock, activated(self._ordinal):
            for block in self._blocks.values():
                block.memory.free()
            self._blocks.clear()

    def _allocate(self, stream: Any, name: str, size: int, zeroed: int) -> int:
        handle, owner = _order_of(stream)
        block = self._blocks.get((name, handle, owner))
        if block is None or block.size < size:
            with activated(self._ordinal):
                if block is not None:
                    block.memory.free()  # which waits for what was enqueued with it
                    del self._blocks[name, handle, owner]
                    size = max(size, min(2 * block.size, block.size + _STEP))
                block = _Block(driver().allocate(max(size, 1)), size)
            self._blocks[name, handle, owner] = block
        if zeroed > block.zeroed:
            with activated(self._ordinal):
                missing = zeroed - block.zeroed
                enqueue_zeros(int(block.memory) + block.zeroed, missing, handle)
        block.zeroed = zeroed  # what comes after that is the kernels' own
        return int(block.memory)


@dataclass(slots=True)
class _Block:
    """Memory that many kernels use in turns, in the order of one stream.

    Attributes:
        memory: the memory.
        size: bytes.
        zeroed: how many of the first bytes are zero when all that is enqueued now is done.
    """

    memory: Memory
    size: int
    zeroed: int = 0


def _order_of(stream: Any) -> tuple[int, int]:
    """What launches must have in common to come one after the other."""
    handle = stream if stream.__class__ is int else getattr(stream, "handle", 0)
    # One handle stands for the default stream of whichever thread asks.
    return handle, threading.get_ident() if handle == _PER_THREAD_STREAM else 0
