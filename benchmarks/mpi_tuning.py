"""What each rank of a distributed product multiplies, tuned where a benchmark has time for it."""

from __future__ import annotations

import dataclasses

from autotune import Gemm, tune


def share_by_rows(problem: Gemm, ranks: int) -> Gemm:
    """What each rank multiplies of a product by rows, with one thread."""
    return dataclasses.replace(problem, m=-(-problem.m // ranks), threads=1)


def tune_local(problem: Gemm, ranks: int, seconds: float) -> None:
    """Tune what each rank multiplies; for no time, leave what there is."""
    if seconds:
        tune(share_by_rows(problem, ranks), target="cpu", timeout=seconds)
