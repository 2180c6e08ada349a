"""Tests that have a GPU take turns, whatever processes they are in."""

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


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Have the GPUs that this process sees to itself, among tests of this user."""
    with contextlib.ExitStack() as held:
        for device in sorted(set(os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(","))):
            name = f"autotune-{os.getuid()}-gpu-{device.replace('/', '-')}.lock"
            path = Path(tempfile.gettempdir()) / name
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            held.callback(os.close, lock)
            # One of the process: it ends with it, and what is forked meanwhile does not have it.
            fcntl.lockf(lock, fcntl.LOCK_EX)
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around the timeout, which bounds what is held
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    with turn() if item.get_closest_marker("gpu") else contextlib.nullcontext():
        return (yield)  # type: ignore[return-value]
