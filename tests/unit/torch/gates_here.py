"""A plugin of pytest: operators of tensors in the host's memory pass compiled gates.

So do those of a GPU's otherwise, with kernels that Python need not call.
"""

from __future__ import annotations

from typing import Any

import pytest

MODULES = ("test_torch_operator", "test_torch_watching")


@pytest.fixture(autouse=True)
def operators_pass_gates(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.module.__name__ not in MODULES:
        return
    from autotune.torch import operator, switch

    gates_of = switch._SWITCH.gates

    def own_gates(tensor: Any, *of: str) -> switch.Own | None:
        return switch._OWN.get(of) or switch._find_own(*of)

    monkeypatch.setattr(switch._SWITCH, "gates", lambda device: gates_of("cpu"))
    monkeypatch.setattr(operator, "own_gates", own_gates)
