"""The kernels of `examples/kernels`: a module for each, with one for the processor and one for GPUs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import autotune

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "kernels"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))


def module(name: str) -> ModuleType:
    """An example, imported afresh: it forgets what it has loaded."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
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
