"""Kernels of ranks, tuned in a cache of its own where a benchmark is given time for it."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from autotune import Gemm, tune


def share_by_rows(problem: Gemm, ranks: int) -> Gemm:
    """What each rank multiplies of a product by rows, with one thread."""
    return dataclasses.replace(problem, m=-(-problem.m // ranks), threads=1)


@contextmanager
def own_cache(seconds: float) -> Iterator[None]:
    """An empty cache for this process and its ranks; with no time to tune, what the user has."""
    if not seconds:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get("AUTOTUNE_CACHE")
        os.environ["AUTOTUNE_CACHE"] = folder
        try:
            yield
        finally:
            del os.environ["AUTOTUNE_CACHE"]
            if before is not None:
                os.environ["AUTOTUNE_CACHE"] = before


def tune_local(problem: Gemm, ranks: int, seconds: float) -> None:
    """Tune what each rank multiplies; for no time, leave what there is."""
    if seconds:
        tune(share_by_rows(problem, ranks), target="cpu", timeout=seconds)
