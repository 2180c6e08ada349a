"""Everything here starts MPI ranks; what it shares."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# What starts ranks, and the tests that every evaluator must pass.
sys.path[:0] = [str(HERE), str(HERE.parent / "conformance")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/mpi/"):
            item.add_marker(pytest.mark.mpi)


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mpi") / "autotune-cache"


@pytest.fixture(autouse=True)
def own_cache(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Not the user's, and one for all tests here: what Numba compiles for one serves the next."""
    monkeypatch.setenv("AUTOTUNE_CACHE", str(shared_cache))
    monkeypatch.delenv("AUTOTUNE_FAMILIES", raising=False)
    return shared_cache
