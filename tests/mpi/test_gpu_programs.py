"""Programs for GPUs, on stand-ins whose streams are as late as they may be, on real ranks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from mpiexec import run_ranks
from slow_machine import SlowMachine, values

from autotune.cli import main
from autotune.core.errors import InputError, MissingDependencyError
from autotune.core.limits import MpiLimits
from autotune.distributed.mpi.evaluator import device_of
from autotune.distributed.mpi.gpu.cuda import loaded_mpi, too_few
from autotune.distributed.mpi.gpu.memory import Order
from autotune.distributed.mpi.gpu.rank import TRANSPORTS, GpuRank
from autotune.distributed.mpi.messages import GpuSet, RankSet
from autotune.distributed.mpi.target import MpiTarget
from autotune.operations.problem import Gemm
from autotune.targets.families import load_families

CHECK = Path(__file__).with_name("check_programs.py")
FAMILIES = {"gpu_cannon", "gpu_grid", "gpu_reduction", "gpu_summa"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("transport", sorted(TRANSPORTS))
@pytest.mark.parametrize(
    ("ranks", "count"), [(2, 2), pytest.param(4, 1, marks=pytest.mark.thorough)]
)
def test_products_are_right_by_every_transport(
    transport: str, ranks: int, count: int, tmp_path: Path
) -> None:
    done = run_ranks(ranks, str(CHECK), str(tmp_path), str(count), transport)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["wrong"] == []
    assert set(report["families"]) == FAMILIES - ({"gpu_cannon"} if ranks < 4 else set())


def test_the_machine_of_these_tests_shows_who_does_not_wait() -> None:
    gpu = GpuRank(SlowMachine())
    matrix = gpu.upload(np.ones((4, 4)))
    assert np.isnan(values(matrix)).all()  # not there yet
    gpu.synchronize()
    assert (values(matrix) == 1).all()


def test_views_select_what_numpy_selects() -> None:
    gpu = GpuRank(SlowMachine())
    numbers = np.arange(2 * 3 * 5.0).reshape(2, 3, 5)
    matrix = gpu.upload(numbers)
    gpu.synchronize()
    for key in (
        1,
        (slice(None), slice(1, 3)),
        (0, slice(2), slice(1, 4)),
        (1, slice(5, 2)),
        (-1, 2),
    ):
        view, expected = matrix[key], numbers[key]
        assert view.shape == expected.shape
        assert view.contiguous == expected.flags.c_contiguous
        np.testing.assert_array_equal(values(view), expected)
    np.testing.assert_array_equal(values(matrix.reshape(6, 5)), numbers.reshape(6, 5))
    with pytest.raises(ValueError, match="contiguous"):
        matrix[:, 1:].reshape(20)
    with pytest.raises(ValueError, match="cannot be copied"):
        matrix[0] = matrix[:, 0]


def test_strided_copies_between_memories() -> None:
    gpu = GpuRank(SlowMachine())
    numbers = np.arange(35.0).reshape(5, 7)
    matrix, part = gpu.upload(numbers), gpu.empty((5, 3), "float64")
    part[...] = matrix[:, 2:5]
    matrix[1:4, :3] = part[1:4]
    numbers[1:4, :3] = numbers[1:4, 2:5].copy()
    np.testing.assert_array_equal(gpu.fetch(matrix), numbers)


def test_uses_of_the_same_bytes_keep_their_order() -> None:
    machine = SlowMachine()
    order, log = Order(machine), []
    low, high, both = (0, 8), (8, 16), (0, 16)

    def use(name: str, stream: object, **spans: list[tuple[int, int]]) -> None:
        with order.on(stream, **spans):
            stream.add(lambda: log.append(name))  # type: ignore[attr-defined]

    use("write low", machine.transfer, writes=[low])
    use("write high", machine.transfer, writes=[high])
    use("read low", machine.compute, reads=[low])
    use("read low too", machine.transfer, reads=[low])
    order.settle(low, writes=False)
    assert log == ["write low"]
    order.settle(high, writes=False)
    assert log == ["write low", "write high"]
    use("write both", machine.transfer, writes=[both])
    order.settle(both, writes=True)
    assert log[:2] == ["write low", "write high"]
    assert sorted(log[2:4]) == ["read low", "read low too"]
    assert log[4:] == ["write both"]


def test_the_identity_tells_gpus_and_how_messages_travel() -> None:
    local = MpiTarget(2).device()

    def digest(gpus: GpuSet | None) -> str:
        ranks = RankSet(2, 1, 8, "MPICH", "5", "ch4:ofi", gpus)
        return device_of(ranks, local, distributed=True).fingerprint.digest

    sets = [
        None,
        GpuSet("NVIDIA H200", 2, cuda_aware=False, nccl=True),
        GpuSet("NVIDIA H200", 2, cuda_aware=True, nccl=True),
        GpuSet("NVIDIA H200", 2, cuda_aware=False, nccl=False),
        GpuSet("NVIDIA H100", 2, cuda_aware=False, nccl=True),
    ]
    assert len(set(map(digest, sets))) == len(sets)


def test_transports_need_what_they_are_made_of() -> None:
    problem = Gemm(4096, 4096, 4096)
    for name, family in load_families(target="mpi").items():
        plain = family.space(problem, MpiLimits(4, 1, 4))
        staged = family.space(problem, MpiLimits(4, 1, 4, 1, gpus=4))
        every = family.space(problem, MpiLimits(4, 1, 4, 1, gpus=4, cuda_aware=1, nccl=1))
        if name not in FAMILIES:
            assert plain.size
            assert not staged.size
            continue
        assert not plain.size
        assert set(staged.columns["transport"]) == {"staged", "shared"}
        assert set(every.columns["transport"]) == set(TRANSPORTS)
        rejection = staged.rejection({**staged[0], "transport": "direct"})
        assert "does not take addresses in a GPU" in str(rejection)


def test_what_is_asked_for_is_checked() -> None:
    with pytest.raises(InputError, match="local must be one of cpu, cuda, got 'gpu'"):
        MpiTarget(2, local="gpu")
    told = "each rank takes a GPU of its own, got 4 ranks with 2 GPUs: start 2"
    assert too_few(4, 2) == told


def test_without_a_gpu_the_target_says_so() -> None:
    from autotune.gpu.nvidia.presence import can_run

    if can_run():
        pytest.skip("there is a GPU")
    with pytest.raises(MissingDependencyError):
        MpiTarget(2, local="cuda").device()


def test_the_mpi_library_is_found_among_what_is_loaded() -> None:
    paths = {
        "/usr/lib/libmpi.so.40.30.4",
        "/usr/lib/libmpi_cxx.so.40",
        "/opt/my libs/libmpich.so.12",
    }
    assert loaded_mpi(paths) == ["/opt/my libs/libmpich.so.12", "/usr/lib/libmpi.so.40.30.4"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--target", "cpu", "--local", "cuda"], "--local is for --target mpi, got 'cuda'"),
        (["--target", "mpi", "--local", "gpu"], "local must be one of cpu, cuda, got 'gpu'"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    options: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["space", *options]) == 2
    assert told in capsys.readouterr().err
