"""``mpiexec -n N autotune tune --target mpi``: one rank tunes, all of them measure."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from autotune.core.errors import AutotuneError
from autotune.core.version import __version__

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from autotune.targets.mpi.ranks.attached import AttachedRanks


@contextmanager
def attached_ranks(target: str, args: argparse.Namespace) -> Iterator[AttachedRanks | None]:
    """The ranks under the user's mpiexec; None where there are none, or for another target.

    Only rank 0 gets to see the body, and speaks. The others measure with it and then exit: with 0
    if it left them the winners, in `AttachedRanks.winners`, and with 1 if it failed.

    Args:
        target: the target's name.
        args: parsed options, which must be the same on all ranks.

    Raises:
        AutotuneError: the ranks were given different options, or cannot be used.
    """
    from autotune.targets.mpi.ranks.attached import AttachedRanks, attach, is_first, under_mpiexec

    if target != "mpi" or not under_mpiexec():
        yield None
        return
    try:
        ranks = attach(_options(args), gpus=args.local == "cuda")
    except AutotuneError as error:  # on every rank
        if is_first():
            raise
        raise SystemExit(error.exit_code) from None
    if not isinstance(ranks, AttachedRanks):
        raise SystemExit(0 if ranks else 1)
    try:
        yield ranks
    finally:
        ranks.dismiss()


def _options(args: argparse.Namespace) -> dict[str, str]:
    """What the ranks compare: every option as it would be written, and the version."""
    given = {name: value for name, value in vars(args).items() if not callable(value)}
    options = {f"--{name.replace('_', '-')}": str(value) for name, value in given.items()}
    return {**options, "version of autotune": __version__}
