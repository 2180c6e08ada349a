"""The kernels of `examples`: of one module each on the processor and a GPU, and Kernel Tuner's."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import autotune
from autotune.core.configuration import Configuration
from autotune.families.family import KernelFamily
from autotune.gpu.nvidia.known_gpus import find_gpu

LIMITS = find_gpu("h200").limits
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
NAMES = sorted(path.stem for path in (EXAMPLES / "kernels").glob("*.py"))
KERNEL_TUNERS = ("vector_add", "convolution", "matmul", "reduction", "pnpoly", "expdist")
SOURCES = [*(f"kernels/{name}" for name in NAMES), *(f"kernel_tuner/{n}" for n in KERNEL_TUNERS)]
"""Kernels for a GPU."""


def module(name: str, folder: str = "kernels") -> ModuleType:
    """An example, imported afresh: it forgets what it has loaded."""
    path = EXAMPLES / folder / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def kernel(example: ModuleType, target: str) -> autotune.OwnKernel:
    """The kernel of an example on a target."""
    (found,) = (
        each
        for each in vars(example).values()
        if isinstance(each, autotune.OwnKernel) and each.target == target
    )
    return found


def source(path: str) -> autotune.OwnKernel:
    """One of `SOURCES`."""
    folder, _, name = path.partition("/")
    if folder == "kernels":
        return kernel(module(name), "cuda")
    found = getattr(module("kernels", folder), name)
    assert isinstance(found, autotune.OwnKernel)
    return found


def valid(family: KernelFamily, problem: Any, rng: np.random.Generator) -> dict[str, Any]:
    """A configuration that is valid for a problem, and what else expressions know."""
    for _ in range(1000):
        chosen = {each.name: rng.choice(each.values).item() for each in family.parameters}
        values = family.values(Configuration(chosen), problem, LIMITS)
        if all(each.expression.holds(values) for each in family.restrictions):
            return {**values, **chosen}
    raise AssertionError(f"nothing is valid for {problem.label}")


def expected(example: ModuleType, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a call must give, with the defaults of scalars."""
    said = example.SAID
    found = said["reference"](*(each.copy() for each in given), *said.get("scalars", {}).values())
    return found if isinstance(found, tuple) else (found,)


def agree(found: Any, wanted: tuple[Any, ...], rtol: float, least: int = 0) -> None:
    """Check the outputs of a call; integers may be off by `least`."""
    for got, want in zip(found if isinstance(found, tuple) else (found,), wanted, strict=True):
        if got.dtype.kind in "iu":
            assert np.abs(got.astype(np.int64) - want).max() <= least
        else:
            np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * np.abs(want).max())
