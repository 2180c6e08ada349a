"""What a kernel is verified at: one plan for every target.

Before it is timed, at every case of its operation (`autotune.operations.cases`), at two of them
once more on operands that hold NaN and infinity, and at the problem itself; while it is timed, in
single elements that change between calls; after it was timed, on what its last call left and on
another content of the problem's operands; in the finals in every turn and, on operands that nobody
has seen, at everything again and in as many calls as there is time for
(`autotune.measuring.trial`). What a target leaves out:

cuda
    The cases that a configuration is not valid for: a launch is planned for sizes, where other
    targets call an entry that serves all.
cpu
    Those cases too, of other operations than matrix products; where none is left, a small one that
    is valid is taken.
    Cases of more than `HOST_PRODUCTS` multiplications, where a textbook loop takes a second for
    what a GPU does at once, and, for a formula, of more than `FORMULA_PRODUCTS`, as it and its
    reference are computed without a BLAS.
hybrid
    Read-only inputs: memory that a GPU copies from by itself is not write-protected. They are
    compared after every call that is judged.
hybrid, mpi
    Changes of single elements between timed calls (`autotune.operations.poke`), and a bound that
    no time may be below (`autotune.measuring.plausibility`): several processes or devices work.
mpi
    Padded rows, since ranks take whole operands without, and cases of more than `RANK_PRODUCTS`
    multiplications: every rank makes a plan, with communicators of its own, for every case.

On the CPU and on rank 0 the inputs of the problem are read-only memory while a kernel runs; those
of the cases are not, so that a verdict can say which one was written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.operations.cases import Case, cases_of, special_cases

if TYPE_CHECKING:
    from autotune.operations.problem import Problem

OTHER_CONTENTS = ("normal",)
"""Distributions of the contents that the problem's operands have in turns, beside the uniform."""

HOST_PRODUCTS = 2**25
"""Multiplications of the largest case that a processor is asked for in every trial."""

FORMULA_PRODUCTS = 2**20
"""The same where what is computed is no matrix product."""

RANK_PRODUCTS = 2**20
"""The same for ranks, which share the processors and exchange what they multiply."""


def affordable(problem: Problem, most: int, *, padded: bool = True) -> tuple[Case, ...]:
    """The cases of a problem's operation with at most so many multiplications, and special ones.

    Args:
        problem: its own sizes do not matter.
        most: multiplications of the largest.
        padded: whether rows may be apart.
    """
    cases = [
        case if padded else case.without_padding()
        for case in cases_of(problem)
        if problem.with_sizes(*case.sizes).flops <= 2 * most
    ]
    return (*cases, *special_cases(problem, cases))
