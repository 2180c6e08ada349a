"""Targets and kernels of one's own, end to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import own_kernels
import pytest
from own_kernels import BRIEF, damp, damping, gemv
from shared_programs import SharedPrograms

import autotune
from autotune.cli import main
from autotune.core.errors import TuningFailedError
from autotune.core.interrupt import SIGNALS
from autotune.cpu.kernel import load_kernel
from autotune.families.program_cache import ProgramCache
from autotune.operations.cases import cases_of, special_cases
from autotune.operations.verification import Check
from autotune.store import TuningCache
from autotune.targets.families import catalog
from autotune.targets.registry import rescan

sys.path.append(str(Path(__file__).parents[1] / "toy"))

from installed import install

SHAPE = ("--shape", "40x30x20")
TOY = ("--target", "toy", "--order", "columns", "--panel-limit", "32")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    return install(folder)


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process has the package."""
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "toy_target", raising=False)
    rescan()
    yield
    monkeypatch.undo()
    rescan()


def run(site: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """A process in which the package is installed."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def command_line(site: Path, *words: str) -> Any:
    return json.loads(run(site, "-m", "autotune", *words, "--json", "-q").stdout)


@pytest.mark.usefixtures("installed")
def test_every_command_works_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> Any:
        assert main([*words, "--json", "-q"]) == 0
        return json.loads(capsys.readouterr().out)

    [counted] = said("space", *TOY, *SHAPE)
    assert counted["family"] == "panels"
    assert counted["valid"] == 6  # panels of 1, 4 and 16, either way

    emitted = said("emit", "panels", *TOY, *SHAPE, "--set", "panel=4")
    assert emitted["target"] == "toy"
    assert "PANEL = 4" in emitted["source"]

    assert said("device", *TOY)["fingerprint"]["fields"] == {
        "order": "columns",
        "panel": 32,
    }
    families = said("families", "--target", "toy")
    assert [each["family"] for each in families] == ["panels"]

    [tuned] = said("tune", *TOY, *SHAPE, "--trials", "3", "--timeout", "60")
    assert tuned["target"] == "toy"
    rows = said("bench", *TOY, *SHAPE, "--ladder")
    assert {row["kernel"] for row in rows} >= {"NumPy", "tuned (panels)", "panels (default)"}
    [swept] = said("sweep", *TOY, *SHAPE)
    assert swept["complete"]

    [kept] = said("cache", "list")
    assert (kept["target"], kept["id"]) == ("toy", tuned["id"])
    shown = said("cache", "show", tuned["id"])
    assert shown["target"] == "toy"
    verified = said("cache", "verify")
    assert [row["status"] for row in verified["records"]] == ["ok"]
    again = said("emit", "--record", tuned["id"])
    assert again["configuration"] == tuned["best"]["configuration"]


def test_what_tune_prints_loads_it(site: Path) -> None:
    words = ("tune", *TOY, *SHAPE, "--trials", "2", "--timeout", "60", "-q")
    told = run(site, "-m", "autotune", *words).stdout
    start = told.index("load it   ") + len("load it   ")
    program = "\n".join(line.strip() for line in told[start:].splitlines())
    program += (
        "\nimport numpy\na, b = numpy.ones((40, 30), 'f4'), numpy.ones((30, 20), 'f4')"
        "\nassert (kernel(a, b) == 30).all(); print(kernel.target, kernel.match)"
    )
    assert 'order="columns", panel_limit=32' in program.replace("\n", " ")
    assert run(site, "-c", program).stdout.split() == ["toy", "EXACT"]


@pytest.mark.thorough
def test_its_options_are_its_own(site: Path) -> None:
    command = ("-m", "autotune", "space", *SHAPE)
    told = run(site, *command, "--target", "cpu", "--panel-limit", "3", code=2).stderr
    assert "--panel-limit is for --target toy, got 3 with target cpu" in told
    told = run(site, *command, "--target", "toy", "--gpus", "3", code=2).stderr
    assert "--gpus is for --target hybrid, got 3 with target toy" in told
    told = run(site, *command, "--target", "toy", "--device", "0", code=2).stderr
    assert "--device" in told
    told = run(site, "-m", "autotune", "tune", "--help-all").stdout
    assert "with --target mpi or hybrid or toy only" in told
    assert "hybrid: host (the default)" in " ".join(told.split())
    assert "toy: any word" in told


def test_a_package_that_is_broken_keeps_nobody_from_work(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    install(site, name="broken", value="no_such_module:Target")
    done = run(site, "-m", "autotune", "space", *SHAPE, "--target", "cpu")
    assert "target 'broken' cannot be imported" in done.stderr
    assert "Traceback" not in done.stderr
    done = run(site, "-m", "autotune", "space", *SHAPE, "--target", "broken", code=2)
    assert "mend or uninstall its package" in done.stderr
    install_as = tmp_path / "other"
    install_as.mkdir()
    install(install_as, name="renamed")  # the class says that it is "toy"
    done = run(install_as, "-m", "autotune", "space", *SHAPE, "--target", "renamed", code=2)
    assert "must be a subclass of autotune.targets.Target with that name" in done.stderr


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cache(
    tmp_path_factory: pytest.TempPathFactory, shared_programs: SharedPrograms
) -> Iterator[Path]:
    with shared_programs.at(tmp_path_factory.mktemp("cache")) as folder:
        yield folder


def another_process(cache: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, own_kernels.__file__],
        env={**os.environ, "OWN_KERNEL": str(cache), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A background job's children ignore Ctrl-C.
        preexec_fn=lambda: [signal.signal(each, signal.SIG_DFL) for each in SIGNALS],
    )


def test_the_first_call_tunes_and_all_others_load(cache: Path) -> None:
    kernel = gemv(cache=cache)
    a, x = np.ones((24, 16), np.float32), np.ones(16, np.float32)
    results: list[np.ndarray] = []
    threads = [
        threading.Thread(target=lambda: results.append(kernel(a, x, alpha=2.0))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(each == 32).all() for each in results] == [True] * 3
    (record,) = TuningCache(cache / "tuning.sqlite").records()
    assert (record.operation, record.candidate.family) == ("gemv", "gemv")
    out = np.empty(24, np.float32)
    assert kernel(a, x, out=out) is out
    assert (out == 16).all()
    wide = np.ones((24, 20), np.float32)
    assert (kernel(wide[:, 2:18], x) == 16).all()
    assert kernel.load(M=24, N=16).record == record
    child = os.fork()
    if child == 0:
        os._exit(0 if (kernel(a, x) == 16).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
    # A new process: nothing is tuned there.
    process = another_process(cache, AUTOTUNE_TUNE="0", AUTOTUNE_LOG="stderr")
    output, error = process.communicate(timeout=120)
    assert output.split()[1:] == [kernel.folder.name, str(24 * 32.0)], error
    assert f"autotune: gemv 24x16-float32 on cpu: {record.candidate}, EXACT\n" in error


@pytest.mark.thorough
def test_a_function_may_be_the_reference_and_threads_share_loops(cache: Path) -> None:
    kernel = damping(cache=cache, **BRIEF)
    rng = np.random.default_rng(1)
    a, bias = rng.standard_normal((30, 20)), rng.standard_normal(20)
    result = kernel.tune(M=30, N=20, dtype="float64")
    # A slow one may be given up; none may be wrong.
    assert result.counts.keys() <= {autotune.Outcome.OK, autotune.Outcome.ABANDONED}
    for alpha in (1.0, -2.0):
        np.testing.assert_allclose(kernel(a, bias, alpha=alpha), damp(a, bias, alpha), rtol=1e-13)
    family = catalog("cpu", kernel.name, [kernel.folder])[kernel.name]
    chosen = {"threads": 2, "tile": 8, "order": "plain"}
    shared = load_kernel(family, chosen, result.problem, ProgramCache(cache / "programs"))
    cases = cases_of(result.problem)[:10]
    for case in (*cases, *special_cases(result.problem, cases)):
        verdict = Check(case, result.problem, np.random.default_rng(2)).run(shared, "ieee")
        assert verdict.right, verdict.reason


def wrong(A, x, y, alpha, rows):
    for i in range(A.shape[0]):
        y[i] = 0


def test_a_wrong_kernel_is_not_stored(cache: Path) -> None:
    kernel = gemv(wrong, cache=cache)
    with pytest.raises(TuningFailedError, match=r"^wrong: no candidate .* wrong_result") as caught:
        kernel(np.ones((8, 8), np.float32), np.ones(8, np.float32))
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.thorough
def test_ctrl_c_ends_a_first_call_in_one_line_and_loses_nothing(cache: Path) -> None:
    fresh = cache / "interrupted"
    process = another_process(fresh)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        database = TuningCache(fresh / "tuning.sqlite")
        while process.poll() is None and not any(
            row.measurement.ok for row in database.measurements()
        ):
            threading.Event().wait(0.1)
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=120)
    finally:
        process.kill()
    records = TuningCache(fresh / "tuning.sqlite").records()
    assert [record.operation for record in records] == ["gemv"]
    if process.returncode != 0:  # it was not over before it heard
        last = error.strip().splitlines()[-1]
        assert last.startswith("KeyboardInterrupt: tuning gemv for 24x16-float32 was stopped")
