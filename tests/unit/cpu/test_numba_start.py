"""Numba's compiler starts without SciPy's linear algebra, and finds it where it is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMPILED = """
import sys
import numpy as np
from autotune.cpu.numba_start import import_numba

numba = import_numba()
square = numba.njit("float64(float64)")(lambda x: x * x)
assert square(3.0) == 9
print(*sorted(name for name in sys.modules if name.startswith("scipy.linalg")))
product = numba.njit("float64[:, ::1](float64[:, ::1], float64[:, ::1])")(lambda a, b: a @ b)
a = np.arange(12.0).reshape(3, 4)
assert np.allclose(product(a, a.T.copy()), a @ a.T)
print("scipy.linalg.cython_blas" in sys.modules)
"""

WITHOUT = """
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "scipy" else found(name, *more)
from autotune.cpu.numba_start import import_numba

assert import_numba().njit("float64(float64)")(lambda x: x * x)(3.0) == 9
print(import_numba().np.arraymath._HAVE_BLAS)
"""


def run(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


PRODUCTS = """
import numpy as np
from autotune import matmul
for rows in (300, 301):
    a, b = np.ones((rows, 80)), np.ones((80, 640))
    for _ in range(40):  # the library and kernels take turns
        assert (matmul(a, b) == 80).all()
"""


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("NUMBA_NUM_THREADS", "0", "Numba does not start (ValueError: Number of threads"),
        ("NUMBA_THREADING_LAYER", "none", "Numba does not start (ValueError: The threading layer"),
        ("NUMBA_DISABLE_JIT", "1", "NUMBA_DISABLE_JIT must be 0"),
    ],
)
def test_products_do_without_numba_where_it_does_not_start(
    variable: str, value: str, told: str, warm_cache: Path
) -> None:
    own = {"AUTOTUNE_CACHE": str(warm_cache), "AUTOTUNE_BACKGROUND": "0", variable: value}
    done = subprocess.run(
        [sys.executable, "-c", PRODUCTS],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("products are left to their libraries") == 1  # and not twice
    assert told in done.stderr


def test_only_what_calls_blas_imports_scipy_s() -> None:
    assert run(COMPILED) == ["", "True"]


def test_without_scipy_numba_is_told_so() -> None:
    assert run(WITHOUT) == ["False"]
