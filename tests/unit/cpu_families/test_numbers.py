"""Promises about numbers: NaN, infinity and compensated sums mean what they do in NumPy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autotune
from autotune.core.paths import data_dir
from autotune.families.modules import load_module


def cancelled(x: Any, z: Any, y: Any, u: int) -> None:
    for i in range(x.shape[0]):
        y[i] = (x[i] + z[i]) - x[i]


def inverted(x: Any, z: Any, y: Any, u: int) -> None:
    for i in range(x.shape[0]):
        y[i] = (x[i] - x[i]) + z[i] / x[i]


def compensated(x: Any, z: Any, y: Any, u: int) -> None:
    for i in range(x.shape[0]):
        total = x[i]
        rest = z[i] * 0
        for _ in range(1000):
            part = z[i] - rest
            new = total + part
            rest = (new - total) - part
            total = new
        y[i] = total


@pytest.mark.parametrize("function", [cancelled, inverted, compensated])
def test_own_kernels_reorder_nothing(function: Any, tmp_path: Path) -> None:
    kernel = autotune.kernel(
        operands={"x": "N", "z": "N"},
        out={"y": "N"},
        reference="x + z",
        parameters={"u": [1]},
        cache=str(tmp_path),
    )(function)
    file = tmp_path / "emitted.py"
    file.write_text(kernel.emit(u=1, dtype="float64"))
    x = np.array([np.nan, np.inf, -np.inf, 1e308, 1.0, 1e16])
    z = np.array([1.0, 1.0, 1.0, 1e308, 2.0, 1.0])
    found, expected = np.empty(len(x)), np.empty(len(x))
    addresses = (each.ctypes.data for each in (x, z, found))
    getattr(load_module(file), function.__name__)(len(x), *addresses)
    with np.errstate(all="ignore"):
        function(x, z, expected, 1)
    np.testing.assert_array_equal(found, expected)


def test_only_sums_of_products_are_reordered() -> None:
    reordered = {
        name
        for file in (data_dir("templates")).rglob("*.py.j2")
        for name in re.findall(r"@njit\(\*\*SUMMING\)\ndef (\w+)", file.read_text())
    }
    assert reordered == {"accumulate", "add_block", "add_row", "dots", "multiply"}
    allowing = [
        file for file in data_dir("templates").rglob("*.j2") if "reassoc" in file.read_text()
    ]
    assert [file.name for file in allowing] == ["numba_prelude.py.j2"]
