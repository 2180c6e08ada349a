"""``mpiexec -n N autotune tune --target mpi``: one rank tunes, all of them measure."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.evaluators.mpi.attached import AttachedRanks


@contextmanager
def attached_ranks(target: str, local: str | None) -> Iterator[AttachedRanks | None]:
    """The ranks under the user's mpiexec; None where there are none, or for another target.

    Only rank 0 gets to see the body. The others measure with it and then exit: with 0 if it left
    them the winners, in `AttachedRanks.winners`, and with 1 if it failed.

    Args:
        target: the target's name.
        local: what each rank multiplies on, as ``--local`` has it.
    """
    from autotune.evaluators.mpi.attached import AttachedRanks, attach, under_mpiexec

    if target != "mpi" or not under_mpiexec():
        yield None
        return
    ranks = attach(gpus=local == "cuda")
    if not isinstance(ranks, AttachedRanks):
        raise SystemExit(0 if ranks else 1)
    try:
        yield ranks
    finally:
        ranks.dismiss()
