"""Everything here needs a GPU; what it shares."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from autotune.core.device import Device

HERE = Path(__file__).parent
# The suspects' family, and the tests that every evaluator must pass.
sys.path[:0] = [str(HERE), str(HERE.parent / "conformance")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def gpu() -> Device:
    from autotune.gpu.nvidia.device.identity import read_gpu

    return read_gpu()
