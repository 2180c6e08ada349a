"""Numba's compiler starts without SciPy's linear algebra, and finds it where it is needed."""

from __future__ import annotations

import subprocess
import sys

COMPILED = """
import sys
import numpy as np
from autotune.targets.cpu.numba_start import import_numba

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
from autotune.targets.cpu.numba_start import import_numba

assert import_numba().njit("float64(float64)")(lambda x: x * x)(3.0) == 9
print(import_numba().np.arraymath._HAVE_BLAS)
"""


def run(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_only_what_calls_blas_imports_scipy_s() -> None:
    assert run(COMPILED) == ["", "True"]


def test_without_scipy_numba_is_told_so() -> None:
    assert run(WITHOUT) == ["False"]
