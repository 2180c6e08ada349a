"""A prior for searches: a device's prices on configurations that nobody has timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.core.limits import GpuLimits
from autotune.families.gpu.occupancy import resident_blocks
from autotune.model.book import volumes
from autotune.model.terms import Programs, Sizes, price
from autotune.model.units import chip_of, rate_of

if TYPE_CHECKING:
    from autotune.core.device import DeviceLimits
    from autotune.families.family import KernelFamily
    from autotune.operations.problem import Gemm

Columns: TypeAlias = Mapping[str, NDArray[Any]]

Expectation: TypeAlias = Callable[[Columns], NDArray[np.float64]]
"""Logarithms of expected seconds, of columns of parameter values; NaN where nothing can run."""


def expected_log_time(
    family: KernelFamily, prices: Sequence[float], problem: Gemm, limits: DeviceLimits
) -> Expectation | None:
    """The estimate of a family's prices for its configurations; None where there is no model.

    Args:
        family: the configurations' family.
        prices: of the family, per volume, as a portfolio has them.
        problem: what is to be computed.
        limits: of the device.
    """
    work = family.work
    if work is None:
        return None
    sizes = Sizes.of(problem)

    def expected(columns: Columns) -> NDArray[np.float64]:
        rows = len(next(iter(columns.values())))
        names: dict[str, Any] = {**problem.sizes, **limits.names(), **columns}
        for name, expression in family.derived.items():
            names[name], _ = expression.evaluate_columns(names)

        def column(values: Any) -> NDArray[np.float64]:
            return np.broadcast_to(np.asarray(values, np.float64), rows)

        found = [column(each.evaluate_columns(names)[0]) for each in work.expressions]
        counts, flags = found[:4], found[4:]
        usable = np.all([np.isfinite(each) & (each >= 1) for each in counts], axis=0)
        relative = np.ones((2, rows))  # prices are brought to each tile's own volume below
        table = np.column_stack(
            [*(np.where(usable, each, 1.0) for each in counts), *flags, *relative]
        )
        resident = np.ones(rows)
        if isinstance(limits, GpuLimits):
            needs = (column(names[each]) for each in ("threads", "registers", "shared_bytes"))
            threads, registers, shared = (np.maximum(each, 1).astype(np.int64) for each in needs)
            fits = resident_blocks(
                limits, threads=threads, registers=registers, shared_bytes=shared
            )
            usable &= fits > 0
            resident = np.maximum(fits, 1)
        chip = chip_of(limits)
        programs = Programs(table, resident, chip)
        rate = rate_of(family, limits)
        scaled = np.asarray(prices)[:, None] * volumes(table[:, :3], chip.places, rate)
        seconds = price(programs.count(sizes), scaled)
        return np.where(usable & (seconds > 0), np.log(np.maximum(seconds, 1e-300)), np.nan)

    return expected
