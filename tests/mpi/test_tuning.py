"""From tuning on ranks to a kernel of a communicator, through the real parts."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from mpiexec import run_ranks

from autotune.cli import main
from autotune.core.configuration import Candidate, Configuration
from autotune.core.errors import InputError
from autotune.core.measurement import Outcome
from autotune.core.paths import CacheLocations
from autotune.distributed.mpi.processes import parse_library
from autotune.distributed.mpi.ranks.world import World
from autotune.distributed.mpi.target import MpiTarget
from autotune.families.program_cache import ProgramCache
from autotune.measuring.effort import Effort
from autotune.operations.problem import Gemm
from autotune.runtime.loading import load
from autotune.serving.target import Work
from autotune.store import TuningCache
from autotune.targets.families import load_families
from autotune.tuning.tuner import tune

BRIEF = Effort(budget_s=0.02, interval=0.5, finals_s=0.05)
CALLS = Path(__file__).with_name("check_calls.py")


@pytest.mark.thorough
def test_distributed_operands_are_measured_where_they_are(own_cache: Path) -> None:
    target = MpiTarget(2, "distributed")
    problem = Gemm(60, 50, 40, dtype="float64")
    families = load_families(target="mpi")
    programs = ProgramCache(own_cache / "programs")
    with target.evaluator(
        Work(problem, families, target.device(problem), programs, BRIEF)
    ) as evaluator:
        rows = Configuration({"threads": 1, "rows": 2})
        summa = Configuration({"panel": 16, "lookahead": 1, "threads": 1, "rows": 2, "columns": 1})
        for family, configuration in (("rows", rows), ("summa", summa)):
            measured = evaluator.evaluate(Candidate(family, configuration), None)
            assert measured.outcome is Outcome.OK, measured
        worker = Configuration({"master_works": True, "threads": 1, "rows": 2, "columns": 1})
        refused = evaluator.evaluate(Candidate("master_worker", worker), None)
        assert refused.outcome is Outcome.REJECTED
        assert "the master holds the operands" in refused.reason


@pytest.mark.thorough
def test_ranks_that_are_lost_between_trials_cost_none(own_cache: Path) -> None:
    ranks = World(2)
    target = MpiTarget(2, "root", ranks)
    problem = Gemm(60, 50, 40, dtype="float64")
    families, programs = load_families(target="mpi"), ProgramCache(own_cache / "programs")
    candidate = Candidate("rows", Configuration({"threads": 1, "rows": 2}))
    work = Work(problem, families, target.device(problem), programs, BRIEF)
    with target.evaluator(work) as evaluator:
        assert evaluator.evaluate(candidate, None).outcome is Outcome.OK
        lost = ranks.pid
        assert lost is not None
        os.kill(lost, signal.SIGKILL)
        os.waitid(os.P_PID, lost, os.WEXITED | os.WNOWAIT)
        for _ in range(2):
            measured = evaluator.evaluate(candidate, None)
            assert measured.outcome is Outcome.OK, measured
        assert ranks.pid != lost


def test_ranks_and_placement_belong_to_the_identity() -> None:
    devices = [MpiTarget(*arguments).device() for arguments in ((2,), (3,), (2, "distributed"))]
    assert len({device.fingerprint.digest for device in devices}) == 3
    two, _, distributed = devices
    assert two.fingerprint.kind == "mpi"
    assert two.limits.names()["ranks"] == 2
    assert (two.limits.names()["distributed"], distributed.limits.names()["distributed"]) == (0, 1)
    assert two.toolchain["mpi"].startswith(str(two.fingerprint.fields["mpi"]))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [((0,), "ranks must be at least 1, got 0"), ((2, "here"), "operands must be one of root")],
)
def test_a_target_says_what_it_takes(arguments: tuple[int, ...], told: str) -> None:
    with pytest.raises(InputError, match=told):
        MpiTarget(*arguments)


def test_transposed_operands_are_refused() -> None:
    with pytest.raises(InputError, match="layout must be nn on target mpi, got 8x8x8-float32-tn"):
        MpiTarget(2).device(Gemm(8, 8, 8, layout="tn"))


def test_a_kernel_needs_a_communicator() -> None:
    with pytest.raises(InputError, match="comm=comm"):
        load(Gemm(8, 8, 8), "mpi", match="nearest")


@pytest.mark.thorough
def test_a_tuned_kernel_is_loaded_and_called_on_every_rank(own_cache: Path) -> None:
    problem = Gemm(60, 50, 40, dtype="float64")
    result = tune(problem, target=MpiTarget(2), families=["rows"], trials=1, effort=BRIEF)
    assert result.best.target == "mpi"
    assert result.best.fingerprint.fields["operands"] == "root"
    done = run_ranks(2, str(CALLS))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"wrong": []}

    # A record that nothing near it is valid for here is passed over.
    worker = Configuration({"master_works": True, "threads": 1, "rows": 2, "columns": 1})
    useless = dataclasses.replace(result.best, candidate=Candidate("master_worker", worker))
    TuningCache(CacheLocations.at(own_cache).database).add(useless)
    with pytest.raises(InputError, match="comm=comm"):
        load(Gemm(9, 9, 9, dtype="float64"), MpiTarget(2, "distributed"), match="nearest")


@pytest.mark.thorough
def test_all_ranks_under_mpiexec_tune_together(own_cache: Path) -> None:
    done = run_ranks(
        2,
        *("-m", "autotune", "tune", "--target", "mpi", "--shape", "50x60x40", "--json", "--quiet"),
        *("--family", "rows", "--trials", "1", "--timeout", "30", "--cache", str(own_cache)),
    )
    assert done.returncode == 0, done.stderr
    (document,) = json.loads(done.stdout)
    assert document["best"]["family"] == "rows"


@pytest.mark.thorough
def test_all_ranks_under_mpiexec_sweep_together(own_cache: Path) -> None:
    done = run_ranks(
        2,
        *("-m", "autotune", "sweep", "--target", "mpi", "--shape", "50x60x40", "--family", "rows"),
        *("--json", "--quiet", "--cache", str(own_cache)),
    )
    assert done.returncode == 0, done.stderr
    (document,) = json.loads(done.stdout)
    assert document["complete"]


def test_options_that_contradict_mpiexec_end_all_ranks() -> None:
    done = run_ranks(2, "-m", "autotune", "tune", "--target", "mpi", "--ranks", "3")
    assert done.returncode != 0
    assert "--ranks starts ranks, got 3 with 2 under mpiexec" in done.stderr


def test_space_lists_grids_beside_the_least_that_must_be_received(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--target", "mpi", "--ranks", "4096", "--shape", "32768x32768x32768", "--json"]
    assert main(["space", "rows", *options]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    best = document["grids"][0]
    assert best["grid"] == [16, 16, 16]
    assert best["bytes"] == best["least_bytes"]


def test_messages_are_timed_once_and_kept_for_predictions(
    own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["space", "rows", "--target", "mpi", "--ranks", "64", "--shape", "512x512x512"]
    assert main(command) == 0
    assert "measured between two ranks here, MPICH" in capsys.readouterr().out
    kept = own_cache / "networks.json"
    (key, network), *others = json.loads(kept.read_text()).items()
    assert not others
    assert "MPICH" in key
    assert 0 < network["latency_s"] < 1
    assert 0 < network["seconds_per_byte"] < 1e-6

    network["latency_s"] = 0.25  # no machine's: what is kept is what predictions use
    kept.write_text(json.dumps({key: network}))
    assert main([*command, "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert all(each["predicted_s"] > 0.25 for each in document["grids"])
    assert document["grids"][0]["messages"] == min(each["messages"] for each in document["grids"])

    kept.write_text("not what it was")
    assert main([*command, "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    measured = json.loads(kept.read_text())
    assert measured.keys() == {key}
    assert measured[key]["latency_s"] != 0.25


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--target", "cpu", "--ranks", "2"], "--ranks is for --target mpi, got 2"),
        (["--target", "cpu", "--operands", "root"], "--operands is for --target mpi"),
        (["--target", "mpi", "--operands", "here"], "operands must be one of root, distributed"),
        (["--target", "mpi", "--ranks", "0"], "ranks must be at least 1, got 0"),
        (["--target", "mpi", "--layout", "tn"], "layout must be nn on target mpi"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    options: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["space", *options]) == 2
    assert told in capsys.readouterr().err


def test_emit_prints_a_program_for_the_grid_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = ["--set", "rows=2", "--set", "columns=3", "--set", "panel=64"]
    assert main(["emit", "summa", *chosen, "--target", "mpi", "--ranks", "6"]) == 0
    text = capsys.readouterr().out
    assert "ROWS = 2\nCOLUMNS = 3\nRANKS = 6\n" in text
    assert "PANEL = 64" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "MPICH Version:      5.0.2\nMPICH Device:       ch4:ofi\n",
            ("MPICH", "5.0.2", "ch4:ofi"),
        ),
        ("Open MPI v4.1.6, package: Debian OpenMPI, ident: 4.1.6", ("Open MPI", "4.1.6", "")),
        ("Intel(R) MPI Library 2021.13 for Linux* OS\n", ("Intel(R) MPI", "2021.13", "")),
        ("Cray MPI, version 9\n", ("Cray MPI", "", "")),
        ("", ("unknown", "", "")),
    ],
)
def test_libraries_are_told_apart(text: str, expected: tuple[str, str, str]) -> None:
    assert parse_library(text) == expected


def test_nothing_of_mpi_is_imported_to_describe_ranks() -> None:
    script = "import sys; from autotune.distributed.mpi.target import MpiTarget\n"
    script += "MpiTarget(2).device()\n"
    script += "sys.exit('mpi4py.MPI' in sys.modules)"
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", script]) == 0
