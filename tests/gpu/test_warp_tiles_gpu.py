"""`pipelined` and `streamed`: products are right, whatever is decided at the call, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autotune.families.gpu.planning import Planner
from autotune.families.rendering import render
from autotune.gpu.driver import activated, driver
from autotune.gpu.launch.kernel import GpuKernel
from autotune.gpu.launch.program import GpuProgram
from autotune.gpu.nvidia.nvrtc import compile_cuda
from autotune.operations.problem import Gemm
from autotune.targets.families import load_families

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from autotune.core.configuration import Value
    from autotune.core.device import Device
    from autotune.families.family import KernelFamily

SHAPES = (
    (1, 1, 1),
    (7, 5000, 33),
    (130, 4096, 257),
    (511, 2047, 1023),
    (1100, 333, 1090),
    (2049, 1000, 2177),
)
REPETITIONS = 20
"""Calls whose bits are compared: who comes last, and who waits for whom, differs among them."""

PRESETS = {"pipelined": ("small-split", "odd-rows"), "streamed": ("small-tiles", "odd-rows")}


class Compiled:
    """A preset of a family, compiled once, on any problem and with any values at the call."""

    def __init__(self, family: KernelFamily, preset: str, gpu: Device) -> None:
        self.family, self.gpu = family, gpu
        self.configuration = family.presets[preset].configuration
        text = render(family, self.configuration, dtype="float32").text
        architecture = gpu.limits.architecture  # type: ignore[attr-defined]
        program = GpuProgram(
            compile_cuda(text, architecture).cubin, self._plan(Gemm(64, 64, 64), {}), "float32"
        )
        self.kernel = GpuKernel(program)

    def _plan(self, problem: Gemm, changed: Mapping[str, Value]) -> Any:
        values = {**self.configuration, **changed}
        return Planner(self.family, values, problem.dtype, self.gpu.limits).plan(problem)

    def products(self, problem: Gemm, changed: Mapping[str, Value]) -> Iterator[NDArray[Any]]:
        """What repeated calls leave in a C that held NaN."""
        launch = self.kernel.launcher(self._plan(problem, changed))
        with activated(0):
            a, b = operands(problem)
            memory = []
            for each in (a, b):
                memory.append(driver().allocate(each.nbytes))
                driver().upload(int(memory[-1]), each)
            c = np.empty(problem.c_shape, np.float32)
            memory.append(driver().allocate(c.nbytes))
            first, second, third = map(int, memory)
            for _ in range(REPETITIONS):
                driver().upload(third, np.full_like(c, np.nan))
                launch(first, problem.n, second, problem.k, third, problem.k)
                driver().download(c, third)
                yield c
            for each in memory:
                each.free()


def operands(problem: Gemm) -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(problem.m)
    a, b = (rng.uniform(-1, 1, shape) for shape in (problem.a_shape, problem.b_shape))
    return a.astype(np.float32), b.astype(np.float32)


@pytest.fixture(params=[(name, each) for name, found in PRESETS.items() for each in found])
def compiled(request: pytest.FixtureRequest, gpu: Device) -> Iterator[Compiled]:
    name, preset = request.param
    made = Compiled(load_families(target="cuda", operation="gemm")[name], preset, gpu)
    yield made
    made.kernel.close()


def choices(family: KernelFamily) -> list[dict[str, Value]]:
    if family.name == "streamed":
        return [{"least": least, "group": group} for least, group in ((4, 1), (16, 8))]
    splits = [{"splits": each, "last": last} for each in (1, 3, 16) for last in (0, 1)]
    return [*splits, {"splits": 3, "last": 1, "realign": 1}, {"splits": 64, "last": 0}]


@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_right_and_their_bits_the_same(
    shape: tuple[int, int, int], compiled: Compiled
) -> None:
    problem = Gemm(*shape)
    a, b = operands(problem)
    expected = a.astype(np.float64) @ b
    limit = 4 * 2.0**-24 * max(4.0, problem.n**0.5) * (np.abs(a).astype(np.float64) @ np.abs(b))
    bits: dict[Any, bytes] = {}
    for chosen in choices(compiled.family):
        results = set()
        for c in compiled.products(problem, chosen):
            results.add(c.tobytes())
            assert (np.abs(c - expected) <= limit).all(), chosen
        assert len(results) == 1, chosen
        # It makes no difference who adds up the parts.
        known = bits.setdefault(chosen.get("splits", str(chosen)), *results)
        assert {known} == results, chosen
