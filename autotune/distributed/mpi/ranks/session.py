"""What every rank does with a request: all handle the same one, in step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.distributed.mpi.messages import MeasureNetwork, Refused, Request, Setup
from autotune.distributed.mpi.ranks.network import measure_network
from autotune.distributed.mpi.ranks.rig import MpiRig
from autotune.measuring.trial import Trials

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


class Session:
    """One rank's part in answering requests. What `handle` returns on rank 0 is the answer.

    Args:
        comm: the ranks; all of them handle every request, in the same order.
    """

    def __init__(self, comm: Intracomm) -> None:
        self._comm = comm
        self._trials: Trials | None = None

    def handle(self, request: Request) -> object:
        """Do what is asked."""
        if isinstance(request, Setup):
            self._trials = Trials(MpiRig(self._comm, request), request.effort)
            return None
        if isinstance(request, MeasureNetwork):
            return measure_network(self._comm)
        if self._trials is None:
            return Refused(f"{type(request).__name__} came before Setup")
        return self._trials(request)
