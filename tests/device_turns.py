"""Tests that have a GPU run beside each other; those marked `alone` have it to themselves."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_ALONE: list[contextlib.ExitStack] = []
"""Locks of a test that is alone, kept where the next one is alone, too."""


def turn(*, alone: bool) -> contextlib.ExitStack:
    """Take the GPUs that this process sees, among tests of this user, until it is closed."""
    held = contextlib.ExitStack()
    for device in sorted(set(os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(","))):
        name = f"autotune-{os.getuid()}-gpu-{device.replace('/', '-')}"
        # Whoever waits to be alone keeps the gate, which all others pass: none can starve it.
        with contextlib.ExitStack() as passing:
            gate = _open(f"{name}.gate.lock", passing)
            fcntl.lockf(gate, fcntl.LOCK_EX)
            # A lock of the process: it ends with it, and what is forked meanwhile lacks it.
            lock = _open(f"{name}.lock", held)
            fcntl.lockf(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
    return held


def _open(name: str, stack: contextlib.ExitStack) -> int:
    path = Path(tempfile.gettempdir()) / name
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    stack.callback(os.close, descriptor)
    return descriptor


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around the timeout, which bounds what is held
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    if not item.get_closest_marker("gpu"):
        return (yield)  # type: ignore[return-value]
    if not item.get_closest_marker("alone"):
        with turn(alone=False):
            return (yield)  # type: ignore[return-value]
    if not _ALONE:
        _ALONE.append(turn(alone=True))
    try:
        return (yield)  # type: ignore[return-value]
    finally:
        if nextitem is None or not nextitem.get_closest_marker("alone"):
            _ALONE.pop().close()
