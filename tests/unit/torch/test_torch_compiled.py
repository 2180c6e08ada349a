"""Gates of PyTorch's products that are compiled: in processes of their own, once compiled."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", minversion="2.9")

from autotune.torch import compiled, switch  # noqa: E402

HERE = Path(__file__).parent

needs_compiler = pytest.mark.skipif(
    shutil.which("c++") is None, reason="there is no C++ compiler: gates stay in Python"
)


@needs_compiler
@pytest.mark.thorough  # half a minute
def test_switch_and_operators_do_with_compiled_gates_what_they_do_without(tmp_path: Path) -> None:
    names = "test_torch_switch", "test_torch_operator", "test_torch_watching"
    files = [HERE / f"{name}.py" for name in ("check_compiled_gates", *names)]
    python = "test_kernels_serve_where_nobody_watches"  # who ask for a kernel that Python calls
    options = ["-p", "gates_here", "-k", f"not {python}", f"--basetemp={tmp_path}/of"]
    command = [sys.executable, "-m", "pytest", "-q", "-n0", *options, *files]
    environment = {**os.environ, "AUTOTUNE_TEST_CXX": "c++", "PYTHONPATH": str(HERE)}
    made = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert made.returncode == 0, made.stdout[-4000:] + made.stderr[-1000:]


def test_gates_are_told_of_a_winner_once_there_is_one() -> None:
    """Turns of a sum may be over long after its first call."""
    told: list[Any] = []

    class Gates:
        state = 3

        def take(self, call: Any, launch: Any, **how: bool) -> None:
            told.append((call.operation, launch, how))

        def select(self, number: int) -> None:
            pass

    class Winner:
        is_passing = True

    class Found:
        told = None
        kernel: Winner | None = None

        def winner(self, *, added: bool) -> Winner | None:
            assert added
            return self.kernel

        def recorded(self, kernel: Winner) -> str:
            assert kernel is self.kernel
            return "its launch"

    served, found = switch._Served("cpu"), Found()
    served._compiled = Gates()
    selected = switch._Selected(lambda problem: "", None, 1)
    a, c = torch.ones(2, 2), torch.ones(2)

    def call(added: Any) -> None:
        made = served._call("addmm", selected, a, a, added)
        served._take(made, found, strict=True, afterwards=True)

    call(c)
    found.kernel = Winner()
    call(c)  # while it is being compiled
    assert told == []
    found.kernel.is_passing = False
    for added in (c, c, a):
        call(added)
    assert told == [("addmm", "its launch", {"strict": True, "afterwards": True})] * 2


def ask(monkeypatch: pytest.MonkeyPatch, compiler: str) -> None:
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setattr(compiled, "_READY", {})
    compiled.compile_gates.__wrapped__("cpu")


@pytest.mark.parametrize("compiler", ["", "no-such-compiler"])
def test_gates_stay_in_python_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, own_cache: Path, compiler: str
) -> None:
    ask(monkeypatch, compiler)
    assert not compiled._READY
    assert not own_cache.exists()


def test_why_gates_are_not_compiled_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\necho 'gates.cpp:1: fatal error: no headers' >&2\nexit 1\n")
    failing.chmod(0o700)
    monkeypatch.setattr(compiled, "_are_pytorchs", lambda key: True)
    with caplog.at_level(logging.INFO, compiled.__name__):
        ask(monkeypatch, str(failing))
    assert not compiled._READY
    (told,) = [each.getMessage() for each in caplog.records]
    assert "failing refuses the gates: gates.cpp:1: fatal error: no headers" in told


def test_kernels_of_another_package_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compiled gates call PyTorch's own: they are not for what somebody else has replaced."""
    dump = torch._C._dispatch_dump
    assert "CPU: registered at" in dump("aten::mm")

    def replaced(name: str) -> str:
        return str(dump(name)).replace("/RegisterCPU", "/another_package")

    monkeypatch.setattr(torch._C, "_dispatch_dump", replaced)
    assert not compiled._are_pytorchs("CPU")
    assert not compiled._are_pytorchs("NoSuchKey")
