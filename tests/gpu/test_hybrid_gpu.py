"""Host threads and real GPUs: every way to divide a product, on one and on all that are here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from test_evaluator import EvaluatorConformance
from test_hybrid_evaluator import suspects, suspects_evaluator

from autotune import Gemm, load, tune
from autotune.core.errors import OperandError
from autotune.core.limits import HybridLimits
from autotune.distributed.hybrid.harness import measurement_worker
from autotune.distributed.hybrid.kernel import HybridKernel, choose_local
from autotune.distributed.hybrid.machine import HybridProgram, machine_with, make_plan
from autotune.distributed.hybrid.target import HybridTarget
from autotune.distributed.machine import GpuMachine, LocalKernel
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import render
from autotune.gpu.driver import activated
from autotune.gpu.matrix import DeviceMatrix
from autotune.gpu.nvidia.presence import look
from autotune.measuring.effort import Effort
from autotune.targets.families import load_families

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from autotune.core.configuration import Candidate, Configuration
    from autotune.measuring.evaluator import Evaluator

FAMILIES = load_families(target="hybrid")
SIZES = (517, 643, 389)


@pytest.fixture(scope="session")
def gpus() -> int:
    return min(len(look().gpus), 4)


@pytest.fixture(scope="session", params=["float32", "float64"])
def local(request: pytest.FixtureRequest, programs: ProgramCache) -> LocalKernel:
    return choose_local(Gemm(512, 512, 512, request.param), programs)


@pytest.fixture(scope="session")
def machine(local: LocalKernel, programs: ProgramCache, gpus: int) -> Iterator[GpuMachine]:
    with machine_with(local, gpus, programs) as opened:
        yield opened


def sampled(place: str, gpus: int, count: int) -> list[tuple[str, Configuration]]:
    limits = HybridLimits(gpus, 1, int(place == "host"), int(place == "blocks"))
    rng = np.random.default_rng(gpus)
    found = []
    for name, family in FAMILIES.items():
        space = family.space(Gemm(2048, 2048, 2048), limits)
        if space.size:
            rows = rng.choice(space.size, min(count, space.size), replace=False)
            found += [(name, space[int(row)]) for row in rows]
    return found


def on_gpu(machine: GpuMachine, device: int, array: NDArray[Any], padding: int) -> DeviceMatrix:
    """A copy on a GPU, its rows `padding` elements apart."""
    rows, columns = array.shape
    whole = machine.memory(device, rows, columns + padding)
    made = whole[:, :columns]
    with machine.here(device):
        stream = machine.stream(device)
        machine.copy(made, array, stream)
        machine.finish(stream)
        machine.free(stream)
    return made


def from_gpu(machine: GpuMachine, matrix: DeviceMatrix, like: NDArray[Any]) -> NDArray[Any]:
    out = np.empty_like(like)
    with machine.here(matrix.device):
        stream = machine.stream(matrix.device)
        machine.copy(out, matrix, stream)
        machine.finish(stream)
        machine.free(stream)
    return out


@pytest.mark.parametrize("place", ["host", "device", "blocks"])
def test_sampled_programs_multiply(
    machine: GpuMachine, local: LocalKernel, programs: ProgramCache, gpus: int, place: str
) -> None:
    m, n, k = SIZES
    rng = np.random.default_rng(0)
    a, b, c = (rng.random(s).astype(local.dtype) - 0.5 for s in ((m, n), (n, k), (m, k)))
    want = 1.5 * (a.astype(float) @ b.astype(float)) - 0.25 * c
    tolerance = 64 * np.finfo(local.dtype).eps * np.abs(a).max() * n**0.5
    for name, configuration in sampled(place, gpus, 12):
        source = render(FAMILIES[name], configuration, dtype=local.dtype)
        plan = make_plan(HybridProgram(source, name, local), machine, programs, m, n, k)
        for _ in range(2):
            if place == "host":
                out = c.copy()
                plan.from_host(a, b, out, 1.5, -0.25)
            elif place == "device":
                placed = [on_gpu(machine, 0, each, 4) for each in (a, b, c)]
                plan.from_device(placed[0], placed[1], placed[2], 1.5, -0.25)
                out = from_gpu(machine, placed[2], c)
            else:
                spans = plan.blocks()
                blocks = [
                    [
                        on_gpu(machine, device, whole[slice(*span[which])], 0)
                        for device, span in enumerate(spans)
                    ]
                    for whole, which in ((a, 0), (b, 1), (c, 0))
                ]
                plan.on_blocks(blocks[0], blocks[1], blocks[2], 1.5, -0.25)
                out = np.concatenate(
                    [
                        from_gpu(machine, block, c[slice(*span[0])])
                        for block, span in zip(blocks[2], spans, strict=True)
                    ]
                )
            assert np.abs(out - want).max() < tolerance, f"{name} {configuration}"
        plan.free()


def test_page_locked_arrays_need_no_staging(machine: GpuMachine, local: LocalKernel) -> None:
    array = np.zeros((300, 400), local.dtype)
    assert not machine.is_locked(array)
    locked = machine.lock(array)
    assert locked is not None
    assert machine.is_locked(array[3:5])
    machine.unlock(locked)
    assert not machine.is_locked(array)
    memory = machine.pinned(100)
    assert machine.is_locked(memory[10:20])
    machine.free(memory)


BRIEF = Effort(budget_s=0.05, finals_s=0.3, timeout_s=60)
PROBLEM = Gemm(600, 700, 500)


@pytest.mark.alone  # a library that others disturb is not kept
def test_tuned_for_the_host() -> None:
    result = tune(PROBLEM, target=HybridTarget(), trials=4, timeout=60, effort=BRIEF)
    assert all(trial.measurement.ok or trial.measurement.reason for trial in result.trials)
    kernel = load(PROBLEM, target="hybrid")
    assert isinstance(kernel, HybridKernel)
    assert kernel.record is not None
    assert kernel.record.baseline is not None
    assert kernel.record.fingerprint.fields["operands"] == "host"
    rng = np.random.default_rng(0)
    a, b = rng.random((600, 700), np.float32), rng.random((700, 500), np.float32)
    np.testing.assert_allclose(kernel(a, b), a @ b, rtol=1e-4)
    np.testing.assert_allclose(kernel(a[::-1], b), a[::-1] @ b, rtol=1e-4)
    kernel.free()
    np.testing.assert_allclose(kernel(a, b, alpha=2.0), 2 * (a @ b), rtol=1e-4)
    with pytest.raises(OperandError, match="streams of its own"):
        kernel(a, b, stream=1)
    kernel.free()


def test_called_on_arrays_of_gpus(gpus: int) -> None:
    cupy = pytest.importorskip("cupy")
    rng = np.random.default_rng(0)
    a, b = rng.random((600, 700), np.float32), rng.random((700, 500), np.float32)
    whole = load(PROBLEM, target="hybrid", operands="device", match="nearest")
    assert isinstance(whole, HybridKernel)
    with activated(0):
        c = whole(cupy.asarray(a), cupy.asarray(b), cupy.zeros((600, 500), np.float32))
        np.testing.assert_allclose(c.get(), a @ b, rtol=1e-4)
        del c
    whole.free()

    kernel = load(PROBLEM, target=HybridTarget(gpus, "blocks"), match="nearest")
    assert isinstance(kernel, HybridKernel)
    blocks = kernel.blocks
    assert len(blocks) == gpus
    parts: list[list[Any]] = [[], [], []]
    for device, (of_a, of_b, of_c) in enumerate(blocks):
        with activated(device):
            parts[0].append(cupy.asarray(a[of_a.slices].copy()))
            parts[1].append(cupy.asarray(b[of_b.slices].copy()))
            parts[2].append(cupy.zeros(of_c.shape, np.float32))
    kernel(parts[0], parts[1], parts[2])
    for device, (_, _, of_c) in enumerate(blocks):
        with activated(device):
            np.testing.assert_allclose(parts[2][device].get(), (a @ b)[of_c.slices], rtol=1e-4)
    with pytest.raises(OperandError, match="a must be a list of"):
        kernel(parts[0][0], parts[1], parts[2])
    kernel.free()
    for device in range(gpus):
        with activated(device):
            for part in parts:
                part[device] = None


def test_a_product_that_fails_ends_the_call(
    machine: GpuMachine, local: LocalKernel, programs: ProgramCache
) -> None:
    configuration = FAMILIES["rows"].default(Gemm(512, 512, 512), HybridLimits(1, 1, 1, 0))
    source = render(FAMILIES["rows"], configuration, dtype=local.dtype)

    class Failing:
        def __getattr__(self, name: str) -> Any:
            return getattr(machine, name)

        def multiply(self, *_: Any) -> None:
            raise RuntimeError("no product")

    failing: Any = Failing()
    plan = make_plan(HybridProgram(source, "rows", local), failing, programs, 512, 512, 512)
    operands = [np.zeros((512, 512), local.dtype) for _ in range(3)]
    with pytest.raises(RuntimeError, match="no product"):
        plan.from_host(operands[0], operands[1], operands[2], 1.0, 0.0)
    plan.free()


class TestHybridEvaluator(EvaluatorConformance):
    """On real GPUs, operands on the host."""

    @pytest.fixture(scope="class")
    @classmethod
    def evaluator(
        cls, tmp_path_factory: pytest.TempPathFactory, programs: ProgramCache
    ) -> Iterator[Evaluator]:
        folder = tmp_path_factory.mktemp("suspects")
        with suspects_evaluator(
            folder,
            HybridTarget(1).device(PROBLEM),
            lambda wanted: choose_local(wanted, programs),
            measurement_worker,
        ) as evaluator:
            yield evaluator

    @pytest.fixture
    def candidates(self) -> Mapping[str, Candidate]:
        return suspects()

    @pytest.mark.alone  # a library that others disturb has no ratio
    def test_finals_keep_the_order_and_survive_faults(
        self, evaluator: Evaluator, candidates: Mapping[str, Candidate]
    ) -> None:
        super().test_finals_keep_the_order_and_survive_faults(evaluator, candidates)
