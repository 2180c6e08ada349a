"""A roofline model: the expected speed of a GPU kernel, from what it asks of the device.

A model to rank configurations with before any is measured, in the spirit of the roofline
(Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", 2009): a
multiprocessor multiplies, reads fragments from shared memory and tiles from the level-2 cache; the
slowest of the three counts, for as many waves of blocks as the device needs. A block computes what
the family says of it ([work]), else its share of the output. Of tensor cores the family says how
much faster they are, and for which tile a warp reads its operands. The model knows nothing of the
instructions that were emitted.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.core.limits import GpuLimits
from autotune.families.gpu.occupancy import resident_blocks
from autotune.operations.problem import Gemm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from autotune.families.family import KernelFamily
    from autotune.operations.problem import Problem
    from autotune.space import Expression

    Columns = Mapping[str, NDArray[Any]]

_NEEDED = ("threads", "registers", "shared_bytes")
"""Names that a family derives: what one block needs."""

_LATENCY_PRODUCTS = 16 * 32
"""Independent products in flight that keep a multiprocessor busy: four schedulers, four cycles."""

_SHARED_COST = 4.0
"""Cycles of shared memory per element read, in products that could be computed meanwhile."""

_CACHE_COST = 16.0
"""The same for elements read from the level-2 cache."""


def expected_log_time(
    family: KernelFamily, problem: Problem, limits: GpuLimits
) -> Callable[[Columns], NDArray[np.float64]] | None:
    """The model's estimate for a family's configurations.

    Returns:
        A function of columns of parameter values: expected logarithms of times, up to a constant;
        NaN where a configuration cannot be launched. None for a family that does not say what a
        block needs.
    """
    launch = family.launch
    output = next(math.prod(each.shape) for each in problem.operands if each.written)
    all_products = problem.flops / 2
    if launch is None or not set(_NEEDED) <= family.derived.keys():
        return None
    grid, work = launch.grid, family.work
    is_product = isinstance(problem, Gemm) or bool(problem.defined.product)

    def expected(columns: Columns) -> NDArray[np.float64]:
        names: dict[str, Any] = {**problem.sizes, **limits.names(), **columns}
        for name, expression in family.derived.items():
            names[name], _ = expression.evaluate_columns(names)

        def column(expression: Expression) -> NDArray[np.float64]:
            return expression.evaluate_columns(names)[0].astype(np.float64)

        threads, registers, shared_bytes = (
            np.asarray(names[name], dtype=np.int64) for name in _NEEDED
        )
        resident = resident_blocks(
            limits,
            threads=np.maximum(threads, 1),
            registers=np.maximum(registers, 1),
            shared_bytes=shared_bytes,
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            if work is not None and is_product:
                m, n, k = problem.shape
                rows, across, _ = map(column, work.tile)
                parts = column(work.parts)
                units = np.ceil(m / rows) * np.ceil(k / across) * parts
                products = rows * across * n / parts  # of one unit
                elements = rows * across
                even = column(work.share) > 0
                rate = np.full(1, float(work.rate.evaluate(limits.names())))
            else:  # a unit is a block
                units = np.asarray(math.prod(map(column, grid)), np.float64)
                products = all_products / units
                elements = output / units
                even, rate = np.zeros(1, bool), np.ones(1)
            waves = units / (limits.multiprocessor_count * resident)
            waves = np.where(even, waves, np.ceil(waves))
            own = np.maximum(elements / threads, 1.0)  # elements of one thread
            steps = products / (own * threads)
            in_flight = resident * threads * np.minimum(own, 16.0)
            compute = np.maximum(1.0, _LATENCY_PRODUCTS / in_flight) / rate
            read = 2.0 / np.sqrt(own)  # elements, for each product
            if work is not None and work.warp is not None:
                down, along = map(column, work.warp)
                read = 1.0 / down + 1.0 / along
            shared = _SHARED_COST * read
            cache = _CACHE_COST * 2.0 / np.sqrt(own * threads)
            slowest = np.maximum(np.maximum(compute, shared), cache)
            cost = waves * resident * own * threads * steps * slowest
            return np.asarray(np.where(resident > 0, np.log(cost), np.nan), dtype=np.float64)

    return expected
