"""Whatever one rank does under a user's mpiexec, all of them end, with a line that says why."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from mpiexec import ROOT, until

from autotune.distributed.mpi.processes import VARIABLE, find_mpiexec, launch_command, mapped

LIMIT_S = 5
"""Seconds that ranks wait: several times what a loaded machine takes for what goes before."""
PYTHON = (sys.executable,)
TUNE = (
    *(*PYTHON, "-m", "autotune", "tune", "--target", "mpi", "--shape", "20x30x10", "--quiet"),
    *("--family", "rows", "--trials", "1", "--timeout", "20"),
)
ENDINGS = (*PYTHON, str(Path(__file__).with_name("check_endings.py")))


@dataclass(frozen=True)
class Case:
    """What two ranks run.

    Attributes:
        ranks: the command of each.
        told: what the line says.
    """

    ranks: tuple[Sequence[str], Sequence[str]]
    told: str


def same(scenario: str, told: str) -> Case:
    return Case(((*ENDINGS, scenario),) * 2, told)


STOPPED = ("sh", "-c", 'kill -STOP $$; exec "$0" "$@"', *TUNE)
CASES = {
    "help": Case((TUNE, (*TUNE, "--help")), "rank 1 of 2 ended before joining"),
    "bad argument": Case(((*TUNE, "--bad"), TUNE), "rank 0 of 2 ended before joining"),
    "another target": Case((TUNE, ("sleep", "3600")), "within 5 s and runs `sleep 3600`"),
    "other options": Case((TUNE, (*TUNE, "--seed", "4")), "rank 0 passes '0', rank 1 passes '4'"),
    "rank 0 stopped early": Case((STOPPED, TUNE), "rank 0 of 2 is stopped and has not joined"),
    "rank 1 stopped early": Case((TUNE, STOPPED), "rank 1 of 2 is stopped and has not joined"),
    **{
        scenario: same(scenario, told)
        for scenario, told in {
            "rank 0 stopped between requests": "rank 0 is stopped since 5 s",
            "rank 0 stopped in a request": "rank 0 is stopped since 5 s",
            "rank 1 stopped in a request": "rank 1 is stopped since 5 s",
            "rank 1 raises in a request": "rank 1: ValueError: seven is right out (suspect_",
            "rank 0 hangs in native code": "no result from 2 ranks within 2 s",
            "rank 1 never loads": "rank 1 of 2 did not make the call of load",
            "rank 1 stopped before load": "within 5 s (rank 1 is stopped), and every rank must",
            "rank 1 raises before load": "rank 1 of 2 did not make the call of load",
            "rank 1 raises between calls": "rank 1 of 2 has ended (ValueError: no such file)",
            "rank 1 ends between calls": "rank 1 of 2 has ended (its program is at an end)",
            "rank 1 stopped between calls": "within 3 s (rank 1 is stopped), and every rank must",
            "rank 1 ends a wait early": "rank 1 of 2 has ended (it has had enough)",
            "only rank 0 calls": "rank 1 of 2 did not make call 1 of the kernel",
        }.items()
    },
}


@dataclass(frozen=True)
class Ended:
    """How ranks ended, and which of their processes and segments did not."""

    code: int
    printed: str
    processes: list[int]
    segments: list[Path]


def run(ranks: Sequence[Sequence[str]], cache: Path, **variables: str) -> Ended:
    one, *options = launch_command(find_mpiexec(), 1)
    command = [one]
    for rank in ranks:
        command += [*([":"] if len(command) > 1 else []), *options, *rank]
    mark = uuid.uuid4().hex
    environment = {
        **os.environ,
        "AUTOTUNE_TEST_MARK": mark,
        "AUTOTUNE_CACHE": str(cache),
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        VARIABLE: str(LIMIT_S),
        **variables,
    }
    segments: set[Path] = set()
    with (
        tempfile.TemporaryFile("w+") as printed,
        subprocess.Popen(
            command, env=environment, stdout=printed, stderr=subprocess.STDOUT
        ) as process,
    ):
        # Whose a segment is can be seen only while its ranks run.
        if not until(lambda: _has_ended(process, mark, segments), seconds=120):
            process.kill()
        code = process.wait()
        printed.seek(0)
        text = printed.read()
    until(lambda: not marked(mark))
    return Ended(code, text, marked(mark), [path for path in segments if path.exists()])


def _has_ended(process: subprocess.Popen[bytes], mark: str, segments: set[Path]) -> bool:
    time.sleep(0.1)
    segments |= mapped(marked(mark))
    return process.poll() is not None


def marked(mark: str) -> list[int]:
    """The processes that have a mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


OTHERS = (
    "bad argument",
    "rank 0 stopped early",
    "rank 1 stopped early",
    "rank 0 stopped between requests",
    "rank 1 stopped in a request",
    "rank 0 hangs in native code",
    "rank 1 never loads",
    "rank 1 raises before load",
    "rank 1 ends between calls",
    "rank 1 stopped between calls",
    "rank 1 ends a wait early",
)
"""Their like are among the rest."""


@pytest.fixture(scope="module")
def endings(
    shared_cache: Path, request: pytest.FixtureRequest
) -> Iterator[dict[str, Future[Ended]]]:
    """All cases that are asked for, several at a time: they do little but wait."""
    every = request.config.getoption("thorough")
    asked = {name: case for name, case in CASES.items() if every or name not in OTHERS}
    with ThreadPoolExecutor(5) as pool:
        yield {name: pool.submit(run, case.ranks, shared_cache) for name, case in asked.items()}


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=pytest.mark.thorough if each in OTHERS else []) for each in CASES],
)
def test_all_ranks_end_with_one_line(name: str, endings: dict[str, Future[Ended]]) -> None:
    ended = endings[name].result()
    lines = [line for line in ended.printed.splitlines() if line.startswith("autotune")]
    usage = [line for line in lines if "unrecognized arguments" in line]
    assert len(usage) == (name == "bad argument"), ended.printed
    assert len(set(lines) - set(usage)) == 1, (ended.code, ended.printed)
    (line,) = set(lines) - set(usage)
    assert CASES[name].told in line, ended.printed
    assert ended.code != 0
    assert ended.processes == []
    assert ended.segments == []
    raises = name in ("rank 1 raises before load", "rank 1 raises between calls")
    assert ("Traceback" in ended.printed) == raises, ended.printed


def test_a_rank_that_is_busy_is_named_and_waited_for(shared_cache: Path, tmp_path: Path) -> None:
    named = tmp_path / "named"
    ended = run([(*ENDINGS, "rank 1 comes late", str(named))] * 2, shared_cache)
    assert ended.code == 0, ended.printed
    assert ended.printed.count("done") == 2
    (line,) = named.read_text().splitlines()
    assert "rank 1 of 2 did not make call 1 of the kernel" in line
    assert "the others go on waiting; set AUTOTUNE_MPI_TIMEOUT" in line
    assert ended.processes == []


@pytest.mark.parametrize(
    "scenario",
    [
        "rank 0 is late for a roll",
        pytest.param("all wait", marks=pytest.mark.thorough),
        pytest.param("rank 1 is refused", marks=pytest.mark.thorough),
    ],
)
def test_nobody_is_ended_where_all_ranks_come(scenario: str, shared_cache: Path) -> None:
    ended = run([(*ENDINGS, scenario)] * 2, shared_cache)
    assert ended.code == 0, ended.printed
    assert ended.printed.replace("\n", "") == "donedone"
    assert ended.processes == []


def test_what_all_ranks_raise_ends_them_as_they_like(shared_cache: Path) -> None:
    ended = run([(*ENDINGS, "all raise")] * 2, shared_cache)
    assert ended.code == 3, ended.printed
    assert "autotune" not in ended.printed
    assert ended.processes == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("limit", ["soon", "0", "1e300"])
def test_a_time_limit_that_is_none_is_refused(limit: str, shared_cache: Path) -> None:
    ended = run([TUNE] * 2, shared_cache, **{VARIABLE: limit})
    assert ended.code == 2
    (line,) = ended.printed.splitlines()
    assert "AUTOTUNE_MPI_TIMEOUT must be the seconds" in line
