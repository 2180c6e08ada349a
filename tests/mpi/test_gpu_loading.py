"""Loading programs for GPUs on ranks, and giving back what was loaded, on stand-ins."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from slow_machine import SlowMachine

from autotune.core.errors import CacheError, LaunchError
from autotune.distributed.mpi import kernel as kernels
from autotune.distributed.mpi import loading
from autotune.distributed.mpi.gpu import cuda
from autotune.distributed.mpi.gpu.rank import GpuRank
from autotune.distributed.mpi.messages import GpuProduct, MpiProgram, Setup
from autotune.distributed.mpi.ranks import harness, meeting
from autotune.families.rendering import Source
from autotune.measuring.effort import Effort
from autotune.measuring.messages import Vendor
from autotune.operations.problem import Gemm

PRODUCT = GpuProduct((), b"")
PROGRAM = MpiProgram(Source("def gemm(*sizes): ...", "gemm", (), "mpi"), "some", PRODUCT)


class Comm:
    """Rank 1 of two; rank 0 says in gatherings what it is told to."""

    rank, size = 1, 2

    def __init__(self, other: Any = None) -> None:
        self.other = other
        self.freed = self.gathered = False

    def Split_type(self, kind: int) -> Comm:
        return Comm()

    def allgather(self, mine: Any) -> list[Any]:
        self.gathered = True
        return [self.other, mine]

    def Free(self) -> None:
        self.freed = True


class Full:
    """A program cache on a full disk."""

    def write(self, source: Source, family: str) -> Path:
        raise CacheError("no space")


class Loaded:
    """What was loaded: a GPU's kernels, or a program that multiplies with them."""

    gpu = None

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def a_harness(folder: Path, comm: Comm) -> harness.MpiHarness:
    setup = Setup(Gemm(2, 2, 2), Effort(), folder, True, 0, alone=PRODUCT, gpu="H200")
    return harness.MpiHarness(comm, setup)  # type: ignore[arg-type]


def test_ranks_take_gpus_together_before_what_may_go_wrong_on_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    comm, taken = Comm(), []
    monkeypatch.setattr(loading, "take_gpu", taken.append)
    with pytest.raises(CacheError, match="no space"):
        loading.load_program(PROGRAM, Full(), comm)  # type: ignore[arg-type]
    assert taken == [comm]


def test_a_gpu_that_the_driver_refuses_is_told_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(ordinal: int) -> None:
        raise LaunchError("out of memory")

    monkeypatch.setattr(cuda, "count_gpus", lambda: 2)
    monkeypatch.setattr(cuda, "_taken", None)
    monkeypatch.setattr(cuda, "Gpu", refuse)
    comm = Comm((None, ("node", "0000:01:00.0")))
    with pytest.raises(LaunchError, match="out of memory"):
        cuda.take_gpu(comm)  # type: ignore[arg-type]
    assert comm.gathered


@pytest.mark.parametrize("what", ["program", "vendor"])
def test_what_another_rank_cannot_load_is_given_back(
    what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loaded = Loaded()
    load_by(monkeypatch, lambda *_: loaded)
    with contextlib.ExitStack() as opened, pytest.raises(harness.NotLoadedError, match="no space"):
        opened.enter_context(opening(what, a_harness(tmp_path, Comm(CacheError("no space")))))
    assert loaded.closed


@pytest.mark.parametrize("what", ["program", "vendor"])
def test_what_one_rank_cannot_load_none_loads(
    what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object) -> None:
        raise LaunchError("out of memory")

    load_by(monkeypatch, refuse)
    with (
        contextlib.ExitStack() as opened,
        pytest.raises(harness.NotLoadedError, match="of memory"),
    ):
        opened.enter_context(opening(what, a_harness(tmp_path, Comm())))


@pytest.mark.parametrize("what", ["program", "vendor"])
def test_candidates_leave_no_code_behind(
    what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loaded = Loaded()
    load_by(monkeypatch, lambda *_: loaded)
    with opening(what, a_harness(tmp_path, Comm())):
        assert not loaded.closed
    assert loaded.closed


def load_by(monkeypatch: pytest.MonkeyPatch, loads: Callable[..., object]) -> None:
    for name in ("load_program", "load_product"):
        monkeypatch.setattr(harness, name, loads)


def opening(what: str, on: harness.MpiHarness) -> contextlib.AbstractContextManager[object]:
    return on.vendor(Vendor("alone", 1, {})) if what == "vendor" else on.load(PROGRAM, keep=False)


def test_kernels_of_ranks_are_loaded_on_all_or_on_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "meet", lambda *_, **__: None)
    loaded = Loaded()
    give: Any = lambda: loaded  # noqa: E731
    other: Any = Comm(LaunchError("out of memory"))
    assert meeting.load_on_all(Comm(), give, name="load") is loaded  # type: ignore[arg-type]
    with pytest.raises(LaunchError, match="out of memory"):
        meeting.load_on_all(other, give, name="load")
    assert loaded.closed


def test_a_freed_kernel_leaves_no_code_behind() -> None:
    comm, machine, freed = Comm(), SlowMachine(), []
    plan = SimpleNamespace(free=lambda: freed.append("plan"))
    gpu = GpuRank(machine)
    kernel = kernels.GpuDistributedKernel(
        Gemm(2, 2, 2),
        comm,
        plan,  # type: ignore[arg-type]
        gpu,
        distributed=True,
    )
    gpu.upload(np.ones((4, 4)))  # is waited for: pinned memory is given back, too
    kernel.free()
    assert freed == ["plan"]
    assert comm.freed
    assert machine.closed


def test_a_closed_machine_has_unloaded_all_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    class Module:
        def runner(self, steps: object) -> None:
            log.append("loaded")

        def unload(self) -> None:
            log.append("unloaded")

    driver = SimpleNamespace(load=lambda _: Module(), stream=lambda **_: object())
    products = SimpleNamespace(close=lambda: log.append("closed"))
    monkeypatch.setattr(cuda, "BindingsDriver", lambda: driver)
    monkeypatch.setattr(cuda, "Products", lambda *_: products)
    for where in ("autotune.distributed.machine", cuda.__name__):
        monkeypatch.setattr(f"{where}.activated", lambda _: contextlib.nullcontext())
    kernel = SimpleNamespace(dtype="float32")
    machine = cuda.CudaMachine(
        SimpleNamespace(ordinal=0),  # type: ignore[arg-type]
        GpuProduct((kernel,), b""),  # type: ignore[arg-type]
        Full(),  # type: ignore[arg-type]
    )
    machine.close()
    assert sorted(log) == ["closed", "loaded", "unloaded"]
