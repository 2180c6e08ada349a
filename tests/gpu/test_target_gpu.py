"""Targets with GPUs do what every target must."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba_here import needs_numba
from test_target import RunningConformance

from autotune.distributed.hybrid.target import HybridTarget
from autotune.gpu.nvidia.target import CudaTarget, NumbaCudaTarget
from autotune.operations.problem import Gemm
from autotune.targets import Target

cupy = pytest.importorskip("cupy")


class OnDevice(RunningConformance):
    """Operands in the memory of the first GPU."""

    def operands(self, problem: Gemm) -> tuple[Any, Any]:
        a, b = super().operands(problem)
        return cupy.asarray(a), cupy.asarray(b)

    def on_host(self, array: Any) -> np.ndarray[Any, Any]:
        return np.asarray(cupy.asnumpy(array))


class TestCuda(OnDevice):
    @pytest.fixture
    def target(self) -> Target:
        return CudaTarget()


class TestNumbaCuda(OnDevice):
    @pytest.fixture
    def target(self) -> Target:
        needs_numba()
        return NumbaCudaTarget()


class TestHybridOnHost(RunningConformance):
    @pytest.fixture
    def target(self) -> Target:
        return HybridTarget(1)


class TestHybridOnDevice(OnDevice):
    @pytest.fixture
    def target(self) -> Target:
        return HybridTarget(1, "device")
