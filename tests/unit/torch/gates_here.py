"""A plugin of pytest: operators of tensors in the host's memory pass compiled gates.

So do those of a GPU's otherwise, with kernels that Python need not call.
"""

from __future__ import annotations

import pytest

MODULES = ("test_torch_operator", "test_torch_watching")


@pytest.fixture(autouse=True)
def operators_pass_gates(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.module.__name__ not in MODULES:
        return
    from autotune.torch import switch

    gates_of = switch._SWITCH.gates
    monkeypatch.setattr(switch._SWITCH, "gates", lambda device: gates_of("cpu"))
    monkeypatch.setattr(switch, "_is_on_gpu", lambda tensor: True)
