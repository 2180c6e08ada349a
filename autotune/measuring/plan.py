"""What a kernel is verified at: one plan for every target.

Before it is timed, at every case of `CASES` and at the problem itself; after it was timed, on what
its last call left and on another content of the problem's operands; in the finals in every turn
and, on operands that nobody has seen, at everything again and in as many calls as there is time
for (`autotune.measuring.trial`). What a target leaves out:

cuda
    The cases that a configuration is not valid for: a launch is planned for sizes, where every
    other target calls an entry that serves all.
cpu
    Cases of more than `HOST_PRODUCTS` multiplications, where a textbook loop takes a second for
    what a GPU does at once, and, for a formula, of more than `FORMULA_PRODUCTS`, as it and its
    reference are computed without a BLAS.
hybrid
    Read-only inputs: memory that a GPU copies from by itself is not write-protected. They are
    compared after every call that is judged.
mpi
    Padded rows, since ranks take whole operands without, and cases of more than `RANK_PRODUCTS`
    multiplications: every rank makes a plan, with communicators of its own, for every case.

On the CPU and on rank 0 the inputs of the problem are read-only memory while a kernel runs; those
of the cases are not, so that a verdict can say which one was written.
"""

from __future__ import annotations

from dataclasses import replace

from autotune.operations.references import SMALL_CASES, Case

_TALL, _DEEP = 4096, 2048
"""What is added to sizes for configurations that are valid for large ones only: tall groups of
tiles, many splits of the reduction."""

CASES = (
    *SMALL_CASES,
    Case(5, 2, 30, beta=1.0),
    Case(300, 270, 290, alpha=1.5, beta=-0.5, padding=1),
    Case(1030, 1500, 70, beta=0.5),
    *(
        Case(m, n, k, alpha=1.25, beta=beta, padding=padding, distribution="normal")
        for m, n, k, beta, padding in (
            (_TALL + 1, 7, 1, 2.0, 0),
            (_TALL + 17, 33, 9, -1.0, 5),
            (_TALL + 65, 127, 63, 0.0, 7),
            (17, _DEEP + 33, 9, -1.0, 5),
            (65, _DEEP + 127, 163, 0.0, 0),
            (_TALL + 17, _DEEP + 33, 9, 0.5, 3),
            (_TALL + 65, _DEEP + 127, 63, 0.0, 0),
        )
    ),
)
"""Small and ragged sizes, tall and deep ones, other alpha and beta, padded rows."""

OTHER_CONTENTS = ("normal",)
"""Distributions of the contents that the problem's operands have in turns, beside the uniform."""

HOST_PRODUCTS = 2**25
"""Multiplications of the largest case that a processor is asked for in every trial."""

FORMULA_PRODUCTS = 2**20
"""The same where what is computed is no product."""

RANK_PRODUCTS = 2**20
"""The same for ranks, which share the processors and exchange what they multiply."""


def affordable(most: int, *, padded: bool = True) -> tuple[Case, ...]:
    """The cases of at most so many multiplications.

    Args:
        most: multiplications of the largest.
        padded: whether rows may be apart.
    """
    return tuple(
        case if padded else replace(case, padding=0)
        for case in CASES
        if case.m * case.n * case.k <= most
    )
