"""The target hybrid where there is no GPU: its device, its spaces, its records and its calls."""

from __future__ import annotations

import ctypes.util
import json
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_machine import NumpyMachine
from records import record

from autotune.arrays.device import DeviceArray
from autotune.cli import main
from autotune.core.configuration import Candidate, Configuration
from autotune.core.errors import (
    InputError,
    LaunchError,
    MissingDependencyError,
    NotTunedError,
    OperandError,
)
from autotune.core.limits import GpuLimits
from autotune.core.paths import CacheLocations
from autotune.distributed.hybrid.harness import PlacedCheck
from autotune.distributed.hybrid.kernel import HybridCall
from autotune.distributed.hybrid.target import HybridTarget, check_alike
from autotune.distributed.machine import nearest_valid
from autotune.families.gpu.planning import Planner
from autotune.families.local import local_problem
from autotune.families.offers import default_family
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import render
from autotune.gpu.matrix import DeviceMatrix
from autotune.gpu.nvidia.target import CudaTarget
from autotune.operations.cases import Case
from autotune.operations.problem import Gemm
from autotune.operations.verification import ProductCheck
from autotune.runtime.loading import load
from autotune.serving.lookup import look_up
from autotune.serving.target import Work
from autotune.store import MatchQuality, TuningCache
from autotune.targets.families import load_families
from autotune.targets.registry import make_target

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

PROBLEM = Gemm(48, 40, 36, "float64")
FAMILIES = load_families(target="hybrid")


def test_gpus_are_told_apart_by_number_links_and_place_of_the_operands() -> None:
    devices = [
        HybridTarget(count, operands).device(PROBLEM, "h200")
        for count in (1, 2, 4)
        for operands in ("host", "device", "blocks")
    ]
    assert len({each.fingerprint.digest for each in devices}) == 9
    fields = devices[-1].fingerprint.fields
    assert (fields["gpus"], fields["operands"]) == (4, "blocks")
    assert fields["compute_capability"] == 90
    assert fields["peers"] == 1
    assert devices[-1].fingerprint.name == "4 x NVIDIA H200"
    assert devices[-1].limits.names() == {
        "gpus": 4,
        "peers": 1,
        "host_operands": 0,
        "block_operands": 1,
    }
    assert (
        default_family(load_families(target="hybrid"), Gemm(9, 9, 9), devices[0].limits) == "rows"
    )


def test_what_a_target_refuses() -> None:
    with pytest.raises(InputError, match="gpus must be at least 1, got 0"):
        HybridTarget(0)
    with pytest.raises(InputError, match="operands must be one of host, device, blocks, got 'x'"):
        HybridTarget(operands="x")
    with pytest.raises(InputError, match="layout must be nn on target hybrid"):
        HybridTarget().device(replace(PROBLEM, layout="nt"), "h200")
    with pytest.raises(InputError, match="choose them with CUDA_VISIBLE_DEVICES"):
        HybridTarget().device(PROBLEM, 1)
    h200, a100 = (CudaTarget().device(name=name) for name in ("h200", "a100"))
    check_alike([h200, h200])
    with pytest.raises(InputError, match=r"GPUs must be alike, and 0 is cuda-nvidia-h200.* and 2"):
        check_alike([h200, h200, a100])


def test_described_gpus_run_nothing(tmp_path: Path) -> None:
    target = make_target("hybrid")
    device = target.device(PROBLEM, "h200")
    programs = ProgramCache(tmp_path)
    with pytest.raises(InputError, match="1 x NVIDIA H200 is known by description only"):
        target.evaluator(Work(PROBLEM, FAMILIES, device, programs))
    candidate = Candidate("rows", FAMILIES["rows"].default(PROBLEM, device.limits))
    with pytest.raises(InputError, match="known by description only"):
        target.kernel(FAMILIES["rows"], candidate, PROBLEM, device, programs)


def test_a_record_of_another_layout_is_not_taken(own_cache: Path) -> None:
    target = HybridTarget(2, "blocks")
    device = target.device(PROBLEM, "h200")
    family = FAMILIES["rows"]
    configuration = family.default(PROBLEM, device.limits)
    TuningCache(CacheLocations.at(None).create().database).add(
        record(
            problem=PROBLEM,
            target="hybrid",
            fingerprint=device.fingerprint,
            toolchain=dict(device.toolchain),
            candidate=Candidate("rows", configuration),
            family_digest=family.digest,
        )
    )
    found = look_up(PROBLEM, target, match="exact", device="h200")
    assert found.candidate.configuration == configuration
    for other, options in (
        (HybridTarget(4, "blocks"), "--dtype float64 --device h200 --gpus 4 --operands blocks`"),
        (HybridTarget(2, "device"), "--dtype float64 --device h200 --gpus 2 --operands device`"),
        (HybridTarget(2, "host"), "--target hybrid --dtype float64 --device h200 --gpus 2`"),
    ):
        with pytest.raises(NotTunedError) as caught:
            look_up(PROBLEM, other, match="exact", device="h200")
        assert options in str(caught.value)
        near = look_up(PROBLEM, other, match="nearest", device="h200")
        assert near.match.quality in (MatchQuality.SIMILAR_DEVICE, MatchQuality.DEFAULT)
        assert near.match.reason


def test_operands_are_placed_for_hybrid_alone() -> None:
    with pytest.raises(
        InputError, match="operands is for target mpi and hybrid, got 'host' with target cpu"
    ):
        load(PROBLEM, target="cpu", operands="host")
    with pytest.raises(InputError, match="gpus is for target hybrid, got 2 with target cpu"):
        load(PROBLEM, target="cpu", gpus=2)
    with pytest.raises(InputError, match="operands must be one of host, device, blocks"):
        load(PROBLEM, target="hybrid", operands="root")


@pytest.mark.skipif(
    ctypes.util.find_library("cuda") is not None, reason="there is an NVIDIA driver"
)
def test_a_missing_driver_is_said_in_one_line() -> None:
    with pytest.raises(MissingDependencyError, match="needs an NVIDIA driver") as caught:
        load(PROBLEM, target="hybrid", match="nearest")
    assert "\n" not in str(caught.value)


@given(
    gpus=st.integers(1, 8),
    operands=st.sampled_from(["host", "device", "blocks"]),
    m=st.integers(1, 5000),
    n=st.integers(1, 5000),
)
def test_every_size_has_a_program(gpus: int, operands: str, m: int, n: int) -> None:
    problem = Gemm(m, n, 7)
    limits = HybridTarget(gpus, operands).device(problem, "h200").limits
    rows = FAMILIES["rows"]
    default = rows.default(problem, limits)
    assert default["devices"] == gpus or operands != "blocks"
    local = local_problem(rows, default, problem, limits)
    assert local.m * int(default["threads"]) * int(default["pieces"]) >= m
    assert local.threads is None
    reduction = FAMILIES["reduction"].space(problem, limits)
    assert bool(reduction.size) == (operands != "blocks")


def test_a_part_of_the_reduction_is_what_a_thread_multiplies() -> None:
    values = {"devices": 2, "threads": 4, "pieces": 2, "sum": "copy", "staging": "direct"}
    problem = Gemm(1000, 4096, 500)
    limits = HybridTarget(2, "host").device(problem, "h200").limits
    local = local_problem(FAMILIES["reduction"], Configuration(values), problem, limits)
    assert (local.m, local.n, local.k) == (1024, 512, 512)


@settings(max_examples=15)  # the space is built for every size
@given(m=st.integers(1, 300), n=st.integers(1, 3000), k=st.integers(1, 300))
def test_a_block_of_any_size_has_a_kernel(m: int, n: int, k: int) -> None:
    limits = CudaTarget().device(name="h200").limits
    assert isinstance(limits, GpuLimits)
    family = load_families(target="cuda")["pipelined"]
    wanted = Configuration({**family.default(Gemm(64, 65536, 64), limits), "splits": 128})
    problem = Gemm(m, n, k)
    nearest = nearest_valid(family, wanted, problem, limits)
    assert Planner(family, nearest, problem.dtype, limits).find(problem) is not None


@given(
    rows=st.integers(1, 9),
    columns=st.integers(1, 9),
    padding=st.integers(0, 3),
    cuts=st.tuples(*[st.integers(0, 9)] * 4),
)
def test_parts_of_a_matrix_lie_where_numpy_has_them(
    rows: int, columns: int, padding: int, cuts: tuple[int, int, int, int]
) -> None:
    array = np.zeros((rows, columns + padding))[:, :columns]
    strides = columns + padding, 1
    matrix = DeviceMatrix(0, array.ctypes.data, (rows, columns), strides, array.dtype)
    top, bottom, left, right = (
        *sorted(min(each, rows) for each in cuts[:2]),
        *sorted(min(each, columns) for each in cuts[2:]),
    )
    part, expected = matrix[top:bottom, left:right], array[top:bottom, left:right]
    assert part.shape == expected.shape
    assert matrix[top:bottom] == matrix[top:bottom, :]
    if expected.size:
        assert part.address == expected.ctypes.data
        assert not part.contiguous or expected.flags.c_contiguous


@pytest.mark.parametrize("key", [slice(None, None, 2), slice(None, None, -1), (0, slice(0, 4, 3))])
def test_slices_of_a_matrix_have_step_one(key: Any) -> None:
    """Kernels are told no step along a row; one that was dropped gave other elements."""
    matrix = DeviceMatrix.dense(0, 4096, (8, 4), np.dtype("float32"))
    with pytest.raises(IndexError, match=r"slices of GPU matrices have step 1, got -?\d$"):
        matrix[key]


class OnHost:
    """A plan that multiplies what is at addresses of the host, as if they were of GPUs."""

    def __init__(self) -> None:
        self.freed = 0

    def blocks(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        return [((0, 20), (0, 16)), ((20, 48), (16, 40))]

    def from_device(
        self, a: DeviceMatrix, b: DeviceMatrix, c: DeviceMatrix, alpha: float, beta: float
    ) -> None:
        self.on_blocks([a], [b], [c], alpha, beta)

    def on_blocks(
        self,
        a: list[DeviceMatrix],
        b: list[DeviceMatrix],
        c: list[DeviceMatrix],
        alpha: float,
        beta: float,
    ) -> None:
        whole = np.concatenate([self._array(each) for each in b])
        for part_a, part_c in zip(a, c, strict=True):
            result = self._array(part_c)
            added = beta * result if beta else 0
            result[...] = alpha * (self._array(part_a) @ whole) + added

    def free(self) -> None:
        self.freed += 1

    @staticmethod
    def _array(matrix: DeviceMatrix) -> NDArray[Any]:
        rows, columns = matrix.shape
        kind = ctypes.c_double * (rows * matrix.stride)
        flat = np.frombuffer(kind.from_address(matrix.address))
        return flat.reshape(rows, matrix.stride)[:, :columns]


class Placed:
    """An array that says that it is on a GPU."""

    def __init__(self, array: NDArray[Any], device: int = 0) -> None:
        self.array = array
        self.device = device


def look(name: str, array: Any) -> DeviceArray:
    if not isinstance(array, Placed):
        raise OperandError(f"{name} must be in the memory of a GPU")
    inner = array.array
    strides = tuple(each // inner.itemsize for each in inner.strides)
    return DeviceArray(inner.ctypes.data, inner.shape, strides, inner.dtype.name, array.device)


def allocate(like: Any, shape: tuple[int, int], dtype: str) -> Placed:
    return Placed(np.full(shape, np.nan, dtype), like.device)


@pytest.fixture
def operands() -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(0)
    return rng.random((48, 40)), rng.random((40, 36)), rng.random((48, 36))


def test_calls_on_the_first_gpu(
    operands: tuple[NDArray[Any], NDArray[Any], NDArray[Any]],
) -> None:
    a, b, c = operands
    plan = OnHost()
    kernel = HybridCall(PROBLEM, "device", lambda _: plan, look, allocate)
    np.testing.assert_allclose(kernel(Placed(a), Placed(b)).array, a @ b)
    out = Placed(c.copy())
    assert kernel(Placed(a), Placed(b), out, 2.0, 0.5) is out
    np.testing.assert_allclose(out.array, 2 * (a @ b) + 0.5 * c)
    for wrong, message in (
        ((Placed(a, 1), Placed(b)), "a must be on GPU 0, and is on 1"),
        ((Placed(a), Placed(b[1:])), r"b must have shape \(40, 36\), got \(39, 36\)"),
        ((Placed(a), b), "b must be in the memory of a GPU"),
        ((Placed(a), Placed(b), None, 1.0, 1.0), "beta = 1.0 scales what out holds"),
        ((Placed(a), Placed(b), None, 1.0, 0.0, 3), "has streams of its own, got 3"),
        ((Placed(a), Placed(b), Placed(a[:, 4:])), "out overlaps a in memory"),
        ((Placed(a), Placed(b), None, "2"), "alpha must be a real number, got '2'"),
    ):
        with pytest.raises(OperandError, match=message):
            kernel(*wrong)
    with pytest.raises(OperandError, match='blocks are kept with operands="blocks" only'):
        _ = kernel.blocks
    kernel.free()
    kernel.free()
    assert plan.freed == 1


def test_a_plan_that_cannot_be_made_leaves_nothing_behind(
    operands: tuple[NDArray[Any], NDArray[Any], NDArray[Any]],
) -> None:
    a, b, _ = operands
    closed: list[str] = []

    def fail(resources: ExitStack) -> OnHost:
        resources.callback(closed.append, "machine")
        raise LaunchError("no memory left")

    kernel = HybridCall(PROBLEM, "device", fail, look, allocate)
    for count in (1, 2):
        with pytest.raises(LaunchError):
            kernel(Placed(a), Placed(b))
        assert closed == ["machine"] * count


def test_calls_on_blocks(operands: tuple[NDArray[Any], NDArray[Any], NDArray[Any]]) -> None:
    a, b, c = operands
    kernel = HybridCall(PROBLEM, "blocks", lambda _: OnHost(), look, allocate)
    blocks = kernel.blocks
    assert [each[0].shape for each in blocks] == [(20, 40), (28, 40)]
    assert [each[1].shape for each in blocks] == [(16, 36), (24, 36)]
    of_a, of_b, of_c = (
        [Placed(x[span[i].slices].copy(), gpu) for gpu, span in enumerate(blocks)]
        for i, x in enumerate((a, b, c))
    )
    made = kernel(of_a, of_b)
    np.testing.assert_allclose(np.concatenate([each.array for each in made]), a @ b)
    assert kernel(of_a, of_b, of_c, 1.0, -1.0) is of_c
    np.testing.assert_allclose(np.concatenate([each.array for each in of_c]), a @ b - c)
    for wrong, message in (
        ((of_a[0], of_b), "a must be a list of 2 arrays, the block of every GPU"),
        ((of_a, of_b[:1]), "b must be a list of 2 arrays"),
        ((of_a[::-1], of_b), r"a\[0\] must have shape \(20, 40\), got \(28, 40\)"),
        ((of_a, [of_b[0], Placed(of_b[1].array)]), r"b\[1\] must be on GPU 1, and is on 0"),
        (
            (of_a, of_b, [of_c[0], Placed(of_a[1].array[:, :36], 1)]),
            "out overlaps a in memory",
        ),
    ):
        with pytest.raises(OperandError, match=message):
            kernel(*wrong)


def test_calls_on_arrays_of_the_host(
    operands: tuple[NDArray[Any], NDArray[Any], NDArray[Any]],
) -> None:
    a, b, c = operands
    device = HybridTarget(2).device(PROBLEM, "h200")
    source = render(
        FAMILIES["rows"], FAMILIES["rows"].default(PROBLEM, device.limits), dtype="float64"
    )
    module: dict[str, Any] = {}
    exec(source.text, module)
    machine = NumpyMachine(2)
    kernel = HybridCall(
        PROBLEM, "host", lambda _: module["gemm"](machine, 48, 40, 36), look, allocate
    )
    np.testing.assert_allclose(kernel(a, b), a @ b)
    np.testing.assert_allclose(kernel(a, b.T.copy().T), a @ b)
    out = c.copy()
    assert kernel(a, b, out, 2.0, 0.5) is out
    np.testing.assert_allclose(out, 2 * (a @ b) + 0.5 * c)
    with pytest.raises(OperandError, match="a must have shape"):
        kernel(b, b)
    kernel.free()
    assert machine.live == []
    np.testing.assert_allclose(kernel(a, b), a @ b)  # it makes itself anew
    kernel.free()


def test_commands_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--target", "hybrid", "--device", "h200", "--gpus", "4"]
    assert main(["space", *options, "--operands", "blocks", "--json"]) == 0
    documents = json.loads(capsys.readouterr().out)
    assert {each["family"]: each["valid"] > 0 for each in documents} == {
        "reduction": False,
        "rows": True,
    }
    assert main(["emit", "rows", *options, "--set", "devices=4", "--set", "threads=8"]) == 0
    printed = capsys.readouterr().out
    assert "DEVICES = 4\nTHREADS = 8\n" in printed
    compile(printed, "emitted", "exec")
    for wrong, message in (
        (["space", "--target", "cpu", "--gpus", "2"], "--gpus is for --target hybrid, got 2"),
        (["space", *options, "--ranks", "2"], "--ranks is for --target mpi, got 2"),
        (["space", *options, "--operands", "root"], "operands must be one of host, device"),
        (["tune", *options], "known by description only"),
    ):
        assert main(wrong) == 2
        assert message in capsys.readouterr().err


def test_operands_that_are_placed_take_turns() -> None:
    class Product:
        def from_host(self, a: Any, b: Any, c: Any, alpha: float, beta: float) -> None:
            c[...] = alpha * (a @ b) + (beta * c if beta else 0)

    check = ProductCheck(
        Case(9, 8, 7), Gemm(1, 1, 1, "float64"), np.random.default_rng(0), others=("normal",)
    )
    placed = PlacedCheck(check, "float64", "host", [])
    assert placed.run(Product(), "ieee").right
    placed.turn()
    assert not placed.judge("ieee").right  # the result of the contents before
    assert placed.run(Product(), "ieee").right
