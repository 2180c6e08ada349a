"""Ranks with a GPU each: every algorithm by every transport, and tuning them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.core.errors import MissingDependencyError
from autotune.distributed.mpi.gpu.cuda import count_gpus
from autotune.distributed.mpi.processes import find_mpiexec, launch_command

ROOT = Path(__file__).parents[2]
CHECK = Path(__file__).with_name("check_mpi_gpu.py")


@pytest.fixture(scope="module")
def gpus() -> int:
    """How many there are, where MPI can use several."""
    try:
        find_mpiexec()
    except MissingDependencyError as missing:
        pytest.skip(str(missing))
    count = count_gpus()
    if count < 2:
        pytest.skip("ranks with a GPU each need two GPUs, and there is one")
    return count


def run_ranks(ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [*launch_command(find_mpiexec(), ranks), sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_are_right_by_every_transport(gpus: int, dtype: str) -> None:
    done = run_ranks(min(gpus, 4), str(CHECK), dtype)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.strip().splitlines()[-1])
    assert report["wrong"] == []
    assert report["plans"] > 0


def test_tuning_stores_a_kernel_for_these_gpus(
    gpus: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--target", "mpi", "--local", "cuda", "--operands", "distributed", "--json"]
    limits = ["--trials", "4", "--timeout", "60", "--cache", str(tmp_path)]
    shape = ["--shape", "1000x900x1100", "--ranks", "2"]
    assert main(["tune", *shape, *options, *limits, "--quiet"]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert document["best"]["family"].startswith("gpu_")
    assert "the same local kernel" in document["baseline"]["name"]


def test_more_ranks_than_gpus_are_refused_in_one_line(
    gpus: int, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--target", "mpi", "--local", "cuda", "--ranks", str(gpus + 1)]
    assert main(["space", *options]) == 2
    told = capsys.readouterr().err
    assert f"got {gpus + 1} ranks with {gpus} GPUs" in told


def test_emitted_programs_run_by_themselves(gpus: int, tmp_path: Path) -> None:
    if shutil.which("mpiexec") is None:
        pytest.skip("no mpiexec on the path")
    program = tmp_path / "program.py"
    arguments = ["emit", "gpu_summa", "--target", "mpi", "--local", "cuda", "--ranks", "2"]
    emitted = subprocess.run(
        [sys.executable, "-m", "autotune", *arguments, "--set", "rows=2"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    program.write_text(emitted.stdout)
    done = run_ranks(2, str(program), "400", "500", "300")
    assert done.returncode == 0, done.stderr
    assert "largest error" in done.stdout
