"""NumPy's matrix product: what CPU kernels are compared with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autotune.cpu.threads import numpy_library
from autotune.measuring.messages import Vendor

BRIEF_SPIN = {"OPENBLAS_THREAD_TIMEOUT": "20"}
"""OpenBLAS's idle threads spin for 2**20 cycles, not for its own 2**28: after a product of NumPy's
they held a core for the whole turn of a kernel with two threads, which then shared the other one.
Calls that follow each other find them awake all the same: NumPy's times are those of a program
without the variable (`benchmarks/with_numpy.py`)."""

_NAMES = {"openblas": "OpenBLAS", "mkl": "MKL", "blis": "BLIS", "flexiblas": "FlexiBLAS"}


@dataclass(frozen=True, slots=True)
class Blas:
    """The BLAS that NumPy calls.

    Attributes:
        library: its name.
        version: its version.
        architecture: the kernels it has chosen; empty where it does not say.
    """

    library: str = "unknown BLAS"
    version: str = ""
    architecture: str = ""

    @property
    def description(self) -> str:
        """Library, version and architecture, e.g. "OpenBLAS 0.3.31, Haswell"."""
        name = f"{self.library} {self.version}".strip()
        return ", ".join(filter(None, (name, self.architecture)))


def numpy_blas() -> Blas:
    """The BLAS loaded with NumPy, as threadpoolctl finds it in this process."""
    library = numpy_library()
    if library is None:
        return Blas()
    return Blas(
        _NAMES.get(library["internal_api"], library["internal_api"]),
        library.get("version") or "",
        library.get("architecture") or "",
    )


def numpy_vendor(blas: Blas, threads: int, about_s: float = 0.0) -> Vendor:
    """NumPy's product, with everything that makes it what it is.

    Args:
        blas: NumPy's BLAS.
        threads: threads it may use.
        about_s: seconds that a call takes, if that is known.
    """
    plural = "" if threads == 1 else "s"
    return Vendor(
        name=f"NumPy {np.__version__} ({blas.description}, {threads} thread{plural})",
        threads=threads,
        details={
            "numpy": np.__version__,
            "blas": blas.library,
            "blas_version": blas.version,
            "blas_architecture": blas.architecture,
        },
        about_s=about_s,
    )
