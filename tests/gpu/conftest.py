"""Shared by tests that need a GPU: the device, compiled programs, and who has it alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from distribution import ALONE

from autotune.families.program_cache import ProgramCache

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.core.device import Device

HERE = Path(__file__).parent
# The suspects' family, and the tests that every evaluator must pass.
sys.path[:0] = [str(HERE), str(HERE.parent / "conformance")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/gpu/"):
            item.add_marker(pytest.mark.gpu)
            module = item.path.stem.removeprefix("test_").removesuffix("_gpu")
            if module in ALONE:
                item.add_marker(pytest.mark.alone)
    # They begin, so that nobody has to be waited for.
    items.sort(key=lambda item: item.get_closest_marker("alone") is None)


@pytest.fixture(autouse=True, scope="session")
def other_tests_compile_too() -> Iterator[None]:
    """Processes that compile: one core in sixteen is a test's."""
    from autotune.gpu.measure import evaluator

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluator, "usable_processors", lambda: 2)
        yield


@pytest.fixture(scope="session")
def gpu() -> Device:
    from autotune.gpu.nvidia.device import read_gpu

    return read_gpu()


@pytest.fixture(scope="session")
def programs(run_folder: Path) -> ProgramCache:
    """Sources and binaries of all tests of this run, whatever process they are in."""
    return ProgramCache(run_folder / "gpu-programs")
