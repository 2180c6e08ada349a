"""Workers share a study through a PostgreSQL server, a real one, and through a journal."""

from __future__ import annotations

import importlib.util
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy.exc import OperationalError

from autotune import Gemm, MatchQuality, load, tune
from autotune.core.errors import CacheError, StudyError
from autotune.core.measurement import Measurement, Outcome
from autotune.measuring.effort import Effort
from autotune.search import database, open_study
from autotune.space import SearchSpace
from autotune.tuning.context import TuningContext
from autotune.tuning.settings import Run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SPACE = SearchSpace({"x": range(5), "y": range(3)}, ["x != y"])
WORKER = """
    import json, sys
    from pathlib import Path
    from autotune.core.measurement import Measurement, Outcome
    from autotune.search import open_study
    from autotune.space import SearchSpace

    space = SearchSpace({"x": range(5), "y": range(3)}, ["x != y"])
    rows = []
    with open_study(space, sys.argv[1], "shared", Path("."), "random", int(sys.argv[2])) as study:
        proposal = study.ask()
        print("ready", flush=True)
        sys.stdin.readline()
        while proposal is not None:
            seconds = 1e-3 * (1 + space.index(proposal.candidate))
            study.tell(proposal, Measurement(Outcome.OK, seconds, (seconds, seconds), 3))
            rows.append(space.index(proposal.candidate))
            proposal = study.ask()
    print(json.dumps(rows))
"""

MANY = SearchSpace({"x": range(6), "y": range(4)}, ["x != y"])
MORTAL = """
    import socket, sys, time
    from pathlib import Path
    from autotune.core.measurement import Measurement, Outcome
    from autotune.search import claims, living, open_study
    from autotune.space import SearchSpace

    storage, seed, host, way = sys.argv[1:]
    claims.LEASE_S, living.BEAT_S = 2.0, 0.2
    if host:
        socket.gethostname = lambda: host
    space = SearchSpace({"x": range(6), "y": range(4)}, ["x != y"])
    with open_study(space, storage or None, "mortal", Path("."), "random", int(seed)) as opened:
        print("ready", flush=True)
        sys.stdin.readline()
        batches = 0
        while batch := opened.ask_batch(2):
            print("asked", flush=True)
            batches += 1
            if batches == {"dies": 2, "slow": 1}.get(way):
                sys.stdin.readline()
            time.sleep(0.2)
            for proposal in batch:
                seconds = 1e-3 * (1 + space.index(proposal.candidate))
                found = Measurement(Outcome.OK, seconds, (seconds, seconds), 3)
                print("told" if opened.tell(proposal, found) else "too late", flush=True)
"""


@dataclass
class Server:
    """A PostgreSQL server on a socket in a folder of its own; nothing listens on a network."""

    programs: Path
    folder: Path

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://autotune@/postgres?host={self.folder}"

    def run(self, program: str, *arguments: str) -> None:
        """Run one of its programs; it refuses to be run by root."""
        as_user: dict[str, Any] = {}
        if os.getuid() == 0:
            owner = unprivileged()
            as_user = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
        done = subprocess.run(
            [self.programs / program, "-D", self.folder / "data", *arguments],
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": str(self.folder)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=180,
            check=False,
            **as_user,
        )
        assert done.returncode == 0, done.stderr.decode()

    def start(self) -> None:
        options = f"-c listen_addresses= -c unix_socket_directories={self.folder} -c fsync=off"
        log = str(self.folder / "log")
        self.run("pg_ctl", "-w", "-t", "120", "-l", log, "-o", options, "start")

    def stop(self) -> None:
        self.run("pg_ctl", "-w", "-t", "120", "-m", "immediate", "stop")


def unprivileged() -> pwd.struct_passwd:
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    return names.get("postgres") or names["nobody"]


def programs() -> Path | None:
    """The folder with the server's own programs, which Debian keeps off the PATH."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((each for each in folders if (each / "pg_ctl").exists()), None)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("psycopg is not installed")
    where = programs()
    if where is None:
        pytest.skip("PostgreSQL's initdb and pg_ctl are not installed")
    # Not below pytest's folder, which other users may not enter; and a socket's path is short.
    with tempfile.TemporaryDirectory(prefix="autotune-pg-", ignore_cleanup_errors=True) as folder:
        server = Server(where, Path(folder))
        server.run("initdb", "-A", "trust", "-U", "autotune", "--no-sync", "-E", "UTF8")
        server.start()
        yield server
        if (server.folder / "data" / "postmaster.pid").exists():
            server.stop()


def begin_together(workers: Sequence[subprocess.Popen[str]]) -> None:
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()


def test_two_workers_share_a_study(server: Server, tmp_path: Path) -> None:
    """Every configuration is run once, by one of them, and a third sees all that they found."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WORKER), server.url, str(seed)],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(2)
    ]
    try:
        begin_together(workers)
        rows = [json.loads(worker.communicate(timeout=300)[0]) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            with worker:  # waits, and closes its pipes
                pass
    assert sorted(rows[0] + rows[1]) == list(range(len(SPACE)))
    assert all(rows), "each had a configuration in hand before the other began to measure"
    with open_study(SPACE, server.url, "shared", tmp_path) as study:
        assert study.ask() is None
        best = study.best
        assert best is not None
        assert best.candidate == SPACE[0]
        assert len(study.measured()) == len(SPACE)
    other = SearchSpace({"x": [1, 2]})
    with pytest.raises(StudyError, match="belongs to search space"):
        open_study(other, server.url, "shared", tmp_path)
    assert list(tmp_path.iterdir()) == []


RESTARTED = """
    import json, sys
    from pathlib import Path
    from autotune.core.measurement import Measurement, Outcome
    from autotune.search import open_study
    from autotune.space import SearchSpace

    space = SearchSpace({"x": range(6), "y": range(5)})
    told = []
    storage, seed = sys.argv[1:]
    with open_study(space, storage, "restarted", Path("."), "random", int(seed)) as study:
        print("ready", flush=True)
        sys.stdin.readline()
        while (proposal := study.ask()) is not None:
            row = space.index(proposal.candidate)
            assert study.tell(proposal, Measurement(Outcome.OK, 1.0 + row, (1.0, 1.0), 3))
            told.append(row)
            print("told", flush=True)
            sys.stdin.readline()
    print(json.dumps(told))
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_a_server_that_restarts_is_waited_for(server: Server, tmp_path: Path) -> None:
    """Twice, whatever three workers are about: every row is told once, and the wait is said."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(RESTARTED), server.url, str(seed)],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in range(3)
    ]
    try:
        begin_together(workers)
        for _ in range(2):
            for worker in workers:
                assert worker.stdin is not None
                worker.stdin.write("\n" * 4)  # more than are read: it goes while they ask
                worker.stdin.flush()
            for worker in workers:
                assert worker.stdout is not None
                assert [worker.stdout.readline() for _ in range(3)] == ["told\n"] * 3
            server.stop()
            server.start()
        said = [worker.communicate(timeout=300) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            with worker:
                pass
    assert [worker.returncode for worker in workers] == [0, 0, 0], said
    rows = [row for out, _ in said for row in json.loads(out.splitlines()[-1])]
    assert sorted(rows) == list(range(30))
    lines = [each.splitlines() for _, each in said]
    assert any(lines)
    assert all(len(each) <= 2 for each in lines), lines
    assert all("does not answer" in line for each in lines for line in each), lines
    space = SearchSpace({"x": range(6), "y": range(5)})
    with open_study(space, server.url, "restarted", tmp_path) as study:
        assert len(study.measured()) == 30
        assert sum(trial.state == "COMPLETE" for trial in study.trials) == 30


def test_an_end_whose_confirmation_is_lost_is_one(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends a trial and goes away: who tells it again hears that it is told."""
    ended = RDBStorage.set_trial_state_values

    def end_and_lose(self: RDBStorage, *args: Any, **kwargs: Any) -> bool:
        ended(self, *args, **kwargs)
        monkeypatch.setattr(RDBStorage, "set_trial_state_values", ended)
        lost = OperationalError("COMMIT", {}, Exception("the connection is lost"))
        raise StorageInternalError("") from lost

    with open_study(SPACE, server.url, "unconfirmed", tmp_path) as study:
        proposal = study.ask()
        assert proposal is not None
        monkeypatch.setattr(RDBStorage, "set_trial_state_values", end_and_lose)
        assert study.tell(proposal, Measurement(Outcome.OK, 1e-3, (1e-3, 1e-3), 3))
        assert [trial.state for trial in study.trials] == ["COMPLETE"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("PATIENCE_S", 0.5), ("interrupt_waits", lambda: True)],
    ids=["longer than is waited", "until somebody interrupts"],
)
def test_a_server_that_goes_away_is_one_line(
    name: str, value: object, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was told before is kept, and the study goes on when the server is back."""
    monkeypatch.setattr(database, name, value)
    ok = Measurement(Outcome.OK, 1e-3, (1e-3, 1e-3), 3)
    study = open_study(SPACE, server.url, name, tmp_path)
    proposal = study.ask()
    assert proposal is not None
    study.tell(proposal, ok)
    server.stop()
    with pytest.raises(CacheError, match=f"the storage of study '{name}' failed") as caught:
        study.ask()
    assert "\n" not in str(caught.value)
    with pytest.raises(StudyError, match="cannot open storage postgresql") as refused:
        open_study(SPACE, server.url, name, tmp_path)
    assert "\n" not in str(refused.value)
    server.start()
    with open_study(SPACE, server.url, name, tmp_path) as again:
        assert [candidate for candidate, _ in again.measured()] == [proposal.candidate]
        assert again.ask() is not None
    study.close()


@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "on other hosts"])
@pytest.mark.parametrize(
    "storage", [pytest.param("postgresql", marks=pytest.mark.thorough), "journal"]
)
def test_what_killed_workers_held_is_measured_by_those_that_live(
    storage: str, elsewhere: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Of four workers two are killed in a trial; a slow one is silent for longer than a lease.

    Every configuration is measured, and once: by the living, and as far as they came by the dead.
    """
    url = request.getfixturevalue("server").url if storage == "postgresql" else None
    name = f"mortal-{elsewhere}"
    code = textwrap.dedent(MORTAL).replace('"mortal"', repr(name))
    hosts = ["", "", "first", "second"] if elsewhere else [""] * 4
    ways = ["lives", "slow", "dies", "dies"]
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", code, url or "", str(seed), host, way],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed, (host, way) in enumerate(zip(hosts, ways, strict=True))
    ]
    try:
        begin_together(workers)
        for victim in workers[2:]:
            assert victim.stdout is not None
            told = [victim.stdout.readline() for _ in range(4)]
            assert told == ["asked\n", "told\n", "told\n", "asked\n"]
        for victim in workers[2:]:  # at once: what two held that died is not tried again
            victim.kill()
        time.sleep(2.5)  # whoever is silent has lost what it holds; the slow one still has its own
        said = [worker.communicate(input="\n", timeout=300)[0] for worker in workers[:2]]
    finally:
        for worker in workers:
            worker.kill()
            with worker:
                pass
    assert [worker.returncode for worker in workers[:2]] == [0, 0]
    assert "too late" not in "".join(said)
    with open_study(MANY, url, name, tmp_path) as study:
        rows = [MANY.index(candidate) for candidate, _ in study.measured()]
        assert sorted(rows) == list(range(len(MANY)))
        lost = [MANY.index(t.candidate) for t in study.trials if t.reason == "orphaned"]
        assert 1 <= len(lost) <= 4
        assert set(lost) <= set(rows)
        assert all(t.state != "RUNNING" for t in study.trials)


def test_a_winner_is_verified_and_timed_again_where_it_lands(
    server: Server, tmp_path: Path
) -> None:
    """What another worker has told decides who is a finalist, and no more."""
    problem = Gemm(24, 20, 16, threads=1)
    effort = Effort(budget_s=0.02, finals_s=0.1)
    context = TuningContext.of(
        problem,
        target="cpu",
        device=None,
        families=["loops"],
        extra_families=(),
        cache=tmp_path / "elsewhere",
        options={},
    )
    run = Run(storage=server.url, study="landed", sampler="random", effort=effort, workers=1)
    with context.open(run) as (study, _):
        told = study.ask()
        assert told is not None
        study.tell(told, Measurement(Outcome.OK, 1e-9, (1e-9, 1e-9), 9))
    result = tune(
        problem,
        target="cpu",
        families=["loops"],
        cache=tmp_path / "here",
        storage=server.url,
        study="landed",
        trials=1,
        timeout=200,
        sampler="random",
        effort=effort,
        workers=1,
    )
    assert result.best.candidate == told.candidate
    assert result.best.median_s > 1e-7
    assert load(problem, "cpu", cache=tmp_path / "here").match is MatchQuality.EXACT
