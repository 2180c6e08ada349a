"""Programs that the tests of a module share."""

from __future__ import annotations

import pytest
from cpu_programs import Programs


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(tmp_path_factory.mktemp("programs"))
