from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from autotune.core.configuration import Candidate, Configuration
from autotune.core.errors import CacheError, InputError, MissingDependencyError, StudyError
from autotune.core.measurement import Measurement, Outcome
from autotune.search import Subject, open_study, storage
from autotune.search.claims import CLAIM, Owner
from autotune.search.internals import deferred_interrupt
from autotune.search.reading import read_study
from autotune.search.storage import slug
from autotune.space import SearchSpace, SpaceUnion

UNION = SpaceUnion(
    {
        "a": SearchSpace({"x": [1, 2, 4, 8], "y": [1, 2, 3, 4, 5]}, ["x * y <= 16"]),
        "b": SearchSpace({"z": [1, 2, 3], "mode": ["p", "q"]}, ["z > 1 or mode == 'p'"]),
    }
)
SHARED = SearchSpace({"x": list(range(6)), "y": list(range(6))}, ["x + y > 2"])
OTHER = SpaceUnion({"a": SearchSpace({"x": [1, 2]})})


def opened(folder, space=UNION, storage=None, name="study", sampler="random", seed=0):
    return open_study(space, storage, name, folder, sampler, seed)


def ok(seconds=1e-3):
    return Measurement(Outcome.OK, seconds)


@pytest.fixture
def run_child():
    """Starts Python processes with this file's names in scope; none outlives the test."""
    with ExitStack() as children:

        def start(code, *arguments, **options):
            child = children.enter_context(_popen(code, *arguments, **options))
            children.callback(child.kill)
            return child

        yield start


def _popen(code, *arguments, **options):
    here = Path(__file__)
    head = f"from {here.stem} import *\n"
    path = os.pathsep.join([str(here.parents[3]), str(here.parent)])
    return subprocess.Popen(
        [sys.executable, "-c", head + textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        **options,
    )


class TestTelling:
    def test_outcomes_become_states_and_attributes(self, tmp_path):
        measurements = {
            Outcome.OK: Measurement(
                Outcome.OK, 2e-3, (1e-3, 3e-3), 9, 0.25, details={"compile_s": 1.5, "isa": "avx2"}
            ),
            Outcome.ABANDONED: Measurement(Outcome.ABANDONED, 9e-3, reason="4.5 times the best"),
            **{
                outcome: Measurement(outcome, reason=f"because {outcome}")
                for outcome in (
                    Outcome.REJECTED,
                    Outcome.COMPILE_FAILED,
                    Outcome.LAUNCH_FAILED,
                    Outcome.TIMEOUT,
                    Outcome.WRONG_RESULT,
                )
            },
        }
        with opened(tmp_path) as study:
            for measurement in measurements.values():
                assert study.tell(study.ask(), measurement)
            trials = study.optuna.trials
            assert [t.state for t in trials] == [
                TrialState.COMPLETE,
                TrialState.PRUNED,
                *[TrialState.FAIL] * 5,
            ]
            assert [t.value for t in trials] == [2e-3, 9e-3, *[None] * 5]
            assert trials[1].intermediate_values == {1: 9e-3}
            assert [t.user_attrs["outcome"] for t in trials] == [str(o) for o in measurements]
            assert trials[6].user_attrs["reason"] == "because wrong_result"
        with opened(tmp_path) as study:
            assert [record.measurement for record in study.trials] == [*measurements.values()]
            assert [m for _, m in study.measured()] == [*measurements.values()]
            assert study.best.number == 0
            assert study.best.candidate in UNION

    @pytest.mark.parametrize("median", [None, 0.0, -1.0, float("nan"), float("inf")])
    def test_a_time_that_is_none_is_refused_and_may_be_told_again(self, median, tmp_path):
        with opened(tmp_path) as study:
            proposal = study.ask()
            with pytest.raises(InputError, match="positive, finite median"):
                study.tell(proposal, Measurement(Outcome.OK, median))
            assert study.tell(proposal, ok())

    def test_what_was_abandoned_may_be_measured_again_to_the_end(self, tmp_path):
        space = SearchSpace({"x": [1, 2, 3]})
        outcomes = [ok(), Measurement(Outcome.ABANDONED, 9e-3), Measurement(Outcome.TIMEOUT)]
        with opened(tmp_path, space) as study:
            asked = [study.ask() for _ in outcomes]
            for proposal, measurement in zip(asked, outcomes, strict=True):
                study.tell(proposal, measurement)
        again = asked[1].candidate
        with opened(tmp_path, space) as study:
            assert study.ask() is None
            assert study.enqueue([again]) == 0
            study.measure_whole()
            assert study.visited == {space.index(each.candidate) for each in asked} - {
                space.index(again)
            }
            assert study.enqueue(each.candidate for each in asked) == 1
            proposal = study.ask()
            assert (proposal.candidate, study.ask()) == (again, None)
            study.tell(proposal, ok(5e-3))
            assert study.ask() is None
            assert dict(study.measured())[again].outcome is Outcome.OK
        with opened(tmp_path, space) as study:  # nobody asks for what is known whole
            study.measure_whole()
            assert len(study.visited) == 3

    def test_telling_twice_is_refused(self, tmp_path):
        with opened(tmp_path) as study:
            proposal = study.ask()
            study.tell(proposal, ok())
            with pytest.raises(StudyError, match="tell each proposal once"):
                study.tell(proposal, ok())

    def test_a_result_that_comes_after_the_trial_was_reclaimed_is_dropped(self, tmp_path):
        with opened(tmp_path) as study:
            proposal = study.ask()
            study.optuna.tell(proposal.number, state=TrialState.FAIL)
            assert study.tell(proposal, ok()) is False
            assert study.best is None

    def test_the_best_is_the_earliest_of_the_fastest(self, tmp_path):
        with opened(tmp_path) as study:
            assert study.best is None
            for seconds in (3e-3, 1e-3, 2e-3, 1e-3):
                study.tell(study.ask(), ok(seconds))
            study.tell(study.ask(), Measurement(Outcome.ABANDONED, 1e-4))
            assert study.best.number == 1


class TestProposing:
    def test_known_good_points_come_first_and_bad_ones_are_skipped(self, tmp_path):
        good = [UNION[5], UNION[11], UNION[2]]
        invalid = Candidate("a", Configuration({"x": 8, "y": 5}))
        unknown = Candidate("c", Configuration({"x": 8}))
        with opened(tmp_path) as study:
            assert study.enqueue([invalid, *good, unknown, good[0]]) == 3
            assert [study.ask().candidate for _ in range(3)] == good
            assert study.enqueue(good) == 0

    def test_a_resumed_study_remembers_what_was_visited(self, tmp_path):
        with opened(tmp_path) as study:
            first = study.ask()
            study.tell(first, ok())
        with opened(tmp_path) as study:
            assert study.enqueue([first.candidate]) == 0
            assert study.visited == {UNION.index(first.candidate)}
            rest = study.ask_batch(100)
            assert len(rest) == len(UNION) - 1
            assert first.candidate not in {p.candidate for p in rest}
            assert study.ask() is None

    def test_what_was_not_told_is_proposed_again(self, tmp_path):
        with opened(tmp_path, sampler="exhaustive") as study:
            batch = study.ask_batch(3)
            study.release(batch[1])
            study.tell(batch[0], ok())
        with opened(tmp_path, sampler="exhaustive") as study:
            assert [r.state for r in study.trials] == ["COMPLETE", "FAIL", "FAIL"]
            assert [r.reason for r in study.trials] == ["", "interrupted", "interrupted"]
            assert study.ask_batch(2)[0].candidate == batch[1].candidate

    def test_a_plain_space_keeps_its_names(self, tmp_path):
        space = SearchSpace({"x": [1, 2, 4], "one": [1]}, ["x < 4"])
        with opened(tmp_path, space) as study:
            proposals = study.ask_batch(5)
            assert {p.candidate for p in proposals} == set(space)
            assert study.optuna.trials[0].params.keys() == {"x", "one"}

    def test_params_hold_exactly_what_runs(self, tmp_path):
        with opened(tmp_path, sampler="tpe") as study:
            for proposal in study.ask_batch(20):
                params = study.optuna.trials[proposal.number].params
                assert params == UNION.flatten(proposal.candidate)
                claim = study.optuna.trials[proposal.number].system_attrs[CLAIM]
                assert proposal.moved == ("proposed" in claim)


class TestOpening:
    def test_another_space_is_refused_naming_both_digests(self, tmp_path):
        with opened(tmp_path) as study:
            study.tell(study.ask(), ok())
        with pytest.raises(StudyError) as caught:
            opened(tmp_path, OTHER)
        assert UNION.digest in str(caught.value)
        assert OTHER.digest in str(caught.value)
        assert "--study" in str(caught.value)
        with opened(tmp_path) as study:
            assert len(study.trials) == 1

    @pytest.mark.parametrize("direction", ["minimize", "maximize"])
    def test_a_study_that_is_not_ours_is_refused(self, direction, tmp_path):
        storage = f"sqlite:///{tmp_path}/theirs.db"
        theirs = optuna.storages.RDBStorage(storage)
        study = optuna.create_study(storage=theirs, study_name="study", direction=direction)
        if direction == "minimize":
            study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
        before = (study.user_attrs, len(study.trials))
        with pytest.raises(StudyError, match="choose another name with --study"):
            opened(tmp_path, storage=storage)
        assert (study.user_attrs, len(study.trials)) == before
        theirs.engine.dispose()

    @pytest.mark.parametrize(
        "url",
        [
            "nonsense",
            "sqlite:////no/such/folder/x.db",
            "nodb://host/name",
            "redis://host",
            "",
            "://",
        ],
    )
    def test_a_bad_url_is_one_line(self, url, tmp_path):
        with pytest.raises(StudyError) as caught:
            opened(tmp_path, storage=url)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("url", "module", "package"),
        [
            ("postgresql://user:hunter2@host/db", "psycopg", "pip install 'psycopg[binary]', or"),
            ("postgresql+psycopg2://host/db", "psycopg2", "pip install psycopg2-binary, or"),
            ("mysql+mysqldb://host/db", "MySQLdb", "pip install mysqlclient, or"),
        ],
    )
    def test_a_missing_driver_is_named_and_a_password_is_not_shown(
        self, url, module, package, tmp_path, monkeypatch
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingDependencyError) as caught:
            opened(tmp_path, storage=url)
        assert package in str(caught.value)
        assert "hunter2" not in str(caught.value)

    def test_a_folder_that_cannot_be_made(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(CacheError, match="cannot keep studies in"):
            opened(tmp_path / "file" / "studies")

    def test_names_that_are_no_file_names(self, tmp_path):
        names = ["a/b", "a b", "..", "行列", "x" * 300, "gemm-2x2x2-float32"]
        assert len({slug(name) for name in names}) == len(names)
        for name in names:
            with opened(tmp_path, name=name) as study:
                study.tell(study.ask(), ok())
        assert len(list(tmp_path.glob("*.log"))) == len(names)
        assert slug("gemm-2x2x2-float32") == "gemm-2x2x2-float32"


class TestDamagedJournals:
    def journal(self, folder):
        with opened(folder) as study:
            for _ in range(3):
                study.tell(study.ask(), ok())
        return folder / "study.log"

    @pytest.mark.parametrize(
        "damage",
        [
            lambda data: b"garbage\n" + data,
            lambda data: data + b"garbage\n",
            lambda data: data + b'"a string"\n' + data,
            lambda data: data + b'{"op_code": 99, "worker_id": "x"}\n',
            lambda data: data + b'{"op_code": 4}\n',
            lambda data: data.replace(b'"study_id":0', b'"study_id":[]'),
            lambda data: b"\x89PNG\r\n\x1a\n\x00\x00" + bytes(range(256)),
            lambda data: b"no line at all",
            lambda data: data[: len(data) // 2] + b"\x00" * 40 + data[len(data) // 2 :],
            lambda data: b"[" * 100_000 + b"\n" + data,
        ],
    )
    def test_a_corrupt_journal_is_named_and_left_alone(self, damage, tmp_path):
        path = self.journal(tmp_path)
        path.write_bytes(damage(path.read_bytes()))
        before = path.read_bytes()
        with pytest.raises(StudyError) as caught:
            opened(tmp_path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert path.read_bytes() == before

    @pytest.mark.parametrize("torn", [b"{", b'{"op_code":5,"work'])
    def test_a_line_that_a_killed_writer_left_is_cut(self, torn, tmp_path):
        path = self.journal(tmp_path)
        path.write_bytes(path.read_bytes() + torn)
        with opened(tmp_path) as study:
            study.tell(study.ask(), ok())
        with opened(tmp_path) as study:
            assert len(study.trials) == 4

    def test_a_folder_in_its_place(self, tmp_path):
        (tmp_path / "study.log").mkdir()
        with pytest.raises(StudyError, match="is not a file"):
            opened(tmp_path)

    @pytest.mark.parametrize("exists", [True, False])
    def test_a_link_in_its_place_is_refused_and_its_target_left_alone(self, exists, tmp_path):
        target = tmp_path / "precious"
        if exists:
            target.write_text("mine")
        (tmp_path / "study.log").symlink_to(target)
        with pytest.raises(StudyError, match="is not a file of its own: remove it") as caught:
            opened(tmp_path)
        assert "\n" not in str(caught.value)
        assert target.read_text() == "mine" if exists else not target.exists()

    def test_a_link_put_there_later_is_refused_too(self, tmp_path):
        path, target = tmp_path / "study.log", tmp_path / "precious"
        study = opened(tmp_path)
        proposal = study.ask()
        target.write_bytes(path.read_bytes())
        path.unlink()
        path.symlink_to(target)
        before = target.read_bytes()
        with pytest.raises(StudyError, match="is a symbolic link"):
            study.tell(proposal, ok())
        assert target.read_bytes() == before

    def test_a_full_disk_loses_nothing(self, tmp_path):
        path = self.journal(tmp_path)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        study = opened(tmp_path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 60, hard))
        try:
            with pytest.raises(CacheError, match="cannot write the study"):
                study.ask()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        study.close()
        with opened(tmp_path) as study:
            assert len(study.measured()) == 3
            study.tell(study.ask(), ok())


def test_a_database_that_breaks_under_way_is_one_line(tmp_path):
    path = tmp_path / "study.db"
    with opened(tmp_path, storage=f"sqlite:///{path}") as study:
        study.tell(study.ask(), ok())
        whole = path.read_bytes()
        path.write_bytes(b"not a database" * 1000)
        with pytest.raises(CacheError, match="the storage of study 'study' failed") as caught:
            study.ask()
        path.write_bytes(whole)
    assert "\n" not in str(caught.value)


class TestOrphans:
    ASKS_AND_WAITS = """
    study = open_study(UNION, None, "study", Path(sys.argv[1]), "exhaustive")
    print(study.ask().number, flush=True)
    sys.stdin.read()
    """

    def test_the_trial_of_a_killed_process_is_reclaimed_and_run(self, tmp_path, run_child):
        child = run_child(self.ASKS_AND_WAITS, tmp_path, stdin=subprocess.PIPE)
        assert child.stdout.readline() == "0\n"
        with opened(tmp_path, sampler="exhaustive") as study:
            # It is alive: its configuration is taken.
            assert [r.state for r in study.trials] == ["RUNNING"]
            assert study.ask().candidate == UNION[1]
        child.kill()
        child.communicate()
        with opened(tmp_path, sampler="exhaustive") as study:
            assert [(r.state, r.reason) for r in study.trials] == [
                ("FAIL", "orphaned"),
                ("FAIL", "interrupted"),
            ]
            assert study.trials[0].measurement is None
            assert study.ask().candidate == UNION[0]

    def test_what_a_dead_process_held_is_the_last_thing_left(self, tmp_path, run_child):
        child = run_child(self.ASKS_AND_WAITS, tmp_path, stdin=subprocess.PIPE)
        assert child.stdout.readline() == "0\n"
        with opened(tmp_path, sampler="exhaustive") as study:
            for proposal in study.ask_batch(len(UNION) - 1):
                study.tell(proposal, ok())
            assert study.ask() is None
            child.kill()
            child.communicate()
            assert study.ask().candidate == UNION[0]

    KILLED_AS_IT_ENDS_A_TRIAL = """
    with open_study(UNION, None, "study", Path(sys.argv[1]), "exhaustive") as study:
        study.optuna.tell = lambda *given, **named: os.kill(os.getpid(), signal.SIGKILL)
        study.tell(study.ask(), Measurement(Outcome(sys.argv[2]), eval(sys.argv[3]), repeats=3))
    """

    @pytest.mark.parametrize(
        ("outcome", "median", "state"),
        [("ok", 2e-3, "COMPLETE"), ("abandoned", 9e-3, "PRUNED"), ("timeout", None, "FAIL")],
    )
    def test_what_a_dead_process_had_measured_ends_its_trial(
        self, outcome, median, state, tmp_path, run_child
    ):
        child = run_child(self.KILLED_AS_IT_ENDS_A_TRIAL, tmp_path, outcome, median)
        assert child.wait(60) == -signal.SIGKILL
        with opened(tmp_path, sampler="exhaustive") as study:
            assert [record.state for record in study.trials] == [state]
            expected = Measurement(Outcome(outcome), median, repeats=3)
            assert study.measured() == [(UNION[0], expected)]
            assert study.ask().candidate == UNION[1]

    def test_a_worker_on_another_host_is_known_by_its_heartbeat(self, tmp_path, monkeypatch):
        there = Owner("elsewhere", "boot", "ns", 7, 9)
        with monkeypatch.context() as patch:
            patch.setattr(Owner, "current", classmethod(lambda cls: there))
            away = opened(tmp_path)
            away.ask()
        with opened(tmp_path) as study:
            assert [r.state for r in study.trials] == ["RUNNING"]
            [heartbeat] = [k for k in study.optuna.user_attrs if str(there) in k]
            study.optuna.set_user_attr(heartbeat, 0.0)
            started = study.optuna.trials[0].datetime_start.timestamp()
        monkeypatch.setattr("autotune.search.claims.time.time", lambda: started + 700)
        with opened(tmp_path) as study:
            assert [r.reason for r in study.trials] == ["orphaned"]


class TestJournalLock:
    def test_who_is_killed_holds_it_no_longer(self, tmp_path, run_child, monkeypatch):
        child = run_child(
            """
            from autotune.search.storage import JournalLock
            JournalLock(Path(sys.argv[1])).acquire()
            print("held", flush=True)
            sys.stdin.readline()
            """,
            tmp_path / "study.log",
            stdin=subprocess.PIPE,
        )
        assert child.stdout.readline() == "held\n"
        monkeypatch.setattr(storage, "PATIENCE_S", 0.05)
        with pytest.raises(StudyError, match=r"has held .*study.log for 0.05 s"):
            opened(tmp_path)
        child.kill()
        child.communicate()
        (tmp_path / "study.log.lock").symlink_to("study.log")  # as Optuna's own locks leave behind
        monkeypatch.setattr(storage.time, "sleep", None)  # nothing is waited for
        with opened(tmp_path) as study:
            assert study.tell(study.ask(), ok())

    def test_threads_take_turns(self, tmp_path):
        lock, inside = storage.JournalLock(tmp_path / "journal"), []

        def use(_):
            for _ in range(50):
                lock.acquire()
                inside.append(1)
                most = len(inside)
                inside.pop()
                lock.release()
                assert most == 1

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(use, range(4)))


class TestWorkers:
    TUNES = """
    storage = sys.argv[2] or None
    study = open_study(SHARED, storage, "study", Path(sys.argv[1]), sys.argv[3], 0)
    with study:
        print("ready", flush=True)
        sys.stdin.readline()
        while batch := study.ask_batch(2):
            for proposal in batch:
                study.tell(proposal, Measurement(Outcome.OK, 1e-3))
                print(proposal.candidate, flush=True)
    """

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "database",
        [False, pytest.param(True, marks=pytest.mark.thorough)],
        ids=["journal", "sqlite"],
    )
    @pytest.mark.parametrize(
        "sampler", [pytest.param("exhaustive", marks=pytest.mark.thorough), "tpe"]
    )
    def test_processes_share_a_study_without_duplicates(
        self, database, sampler, tmp_path, run_child
    ):
        # With one seed and no pause they contend for nearly every configuration.
        storage = f"sqlite:///{tmp_path}/study.db" if database else ""
        children = [
            run_child(self.TUNES, tmp_path, storage, sampler, stdin=subprocess.PIPE)
            for _ in range(3)
        ]
        assert [child.stdout.readline() for child in children] == ["ready\n"] * 3
        for child in children:
            child.stdin.write("go\n")
            child.stdin.flush()
        each = [child.communicate(timeout=120)[0].splitlines() for child in children]
        assert [child.returncode for child in children] == [0, 0, 0]
        ran = [line for lines in each for line in lines]
        assert len(ran) == len(set(ran)) == len(SHARED)
        with opened(tmp_path, SHARED, storage=storage or None) as study:
            assert len(study.measured()) == len(SHARED)
            assert len(study.visited) == len(SHARED)


class TestInterrupts:
    def test_an_interrupt_waits_for_the_end_of_the_block(self):
        reached = []

        def block():
            with deferred_interrupt():
                os.kill(os.getpid(), signal.SIGINT)
                reached.append("end")
            reached.append("after")

        with pytest.raises(KeyboardInterrupt):
            block()
        assert reached == ["end"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_ctrl_c_leaves_a_study_that_goes_on(self, tmp_path, run_child):
        child = run_child(
            """
            import itertools
            space = SearchSpace({"x": list(range(20000))})
            with open_study(space, None, "study", Path(sys.argv[1]), "random") as study:
                for number in itertools.count():
                    study.tell(study.ask(), Measurement(Outcome.OK, 1e-3))
                    print(number, flush=True)
            """,
            tmp_path,
            stderr=subprocess.PIPE,
        )
        for _ in range(15):
            child.stdout.readline()
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=60)
        assert errors.rstrip().endswith("KeyboardInterrupt")
        assert not list(tmp_path.glob("*.lock"))
        lines = (tmp_path / "study.log").read_text().splitlines()
        assert all(json.loads(line) for line in lines)
        with opened(tmp_path, SearchSpace({"x": list(range(20000))})) as study:
            states = {record.state for record in study.trials}
            assert "RUNNING" not in states
            assert len(study.measured()) >= 15
            assert study.tell(study.ask(), ok())


class TestSubjects:
    """A study is of one problem, on one target and device."""

    HERE = Subject("gemm", {"m": 64, "n": 64, "k": 64, "dtype": "float32"}, "cpu", "CPU 1", "ab")

    def opened(self, folder, subject):
        return open_study(UNION, None, "study", folder, "random", 0, subject=subject)

    def measured(self, folder, subject):
        with self.opened(folder, subject) as study:
            study.tell(study.ask(), ok())
            return study.name

    def test_the_same_one_goes_on(self, tmp_path):
        self.measured(tmp_path, self.HERE)
        with self.opened(tmp_path, replace(self.HERE, device="another name of it")) as study:
            assert len(study.trials) == 1

    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            (
                {"problem": {**HERE.problem, "dtype": "float64"}},
                "dtype is float32 there and float",
            ),
            ({"problem": {**HERE.problem, "m": 65}}, "m is 64 there and 65 here"),
            ({"problem": {**HERE.problem, "layout": "tn"}}, "layout is None there and tn here"),
            ({"target": "mpi"}, "target is cpu there and mpi here"),
            ({"operation": "trmm"}, "operation is gemm there and trmm here"),
            ({"fingerprint": "cd"}, "it is of CPU 1, and this is another CPU 1"),
            ({"fingerprint": "cd", "device": "CPU 2"}, "it is of CPU 1, and this is CPU 2"),
        ],
    )
    def test_another_one_is_refused(self, tmp_path, changes, told):
        self.measured(tmp_path, self.HERE)
        content = (tmp_path / "study.log").read_bytes()
        with pytest.raises(StudyError, match="--study") as caught:
            self.opened(tmp_path, replace(self.HERE, **changes))
        assert told in str(caught.value)
        assert "\n" not in str(caught.value)
        # Opening leaves a line; nothing else was written.
        assert (tmp_path / "study.log").read_bytes().startswith(content)
        with self.opened(tmp_path, self.HERE) as study:
            assert len(study.trials) == 1

    def test_one_that_does_not_say_is_taken_while_it_is_empty(self, tmp_path):
        first = self.opened(tmp_path, None)
        with self.opened(tmp_path, self.HERE) as study:
            study.tell(study.ask(), ok())
        first.close()
        with pytest.raises(StudyError, match="target is cpu there and mpi here"):
            self.opened(tmp_path, replace(self.HERE, target="mpi"))

    def test_one_that_does_not_say_and_has_trials_is_kept_and_refused(self, tmp_path):
        self.measured(tmp_path, None)
        with pytest.raises(StudyError, match="does not say of which problem and device"):
            self.opened(tmp_path, self.HERE)
        with self.opened(tmp_path, None) as study:
            assert len(study.trials) == 1


class TestUnused:
    """A run that fails before its first trial leaves nothing behind."""

    def test_a_study_without_trials_leaves_no_file(self, tmp_path):
        with opened(tmp_path):
            assert (tmp_path / "study.log").exists()
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(ZeroDivisionError), opened(tmp_path):
            _ = 1 / 0
        assert list(tmp_path.iterdir()) == []

    def test_a_trial_is_reason_enough_to_keep_it(self, tmp_path):
        with opened(tmp_path) as study:
            study.ask()
        with opened(tmp_path) as again:
            assert len(again.trials) == 1
        assert (tmp_path / "study.log").exists()

    def test_what_another_worker_has_opened_stays(self, tmp_path):
        with opened(tmp_path) as one:
            with opened(tmp_path):
                pass
            assert one.tell(one.ask(), ok())
        with opened(tmp_path) as again:
            assert len(again.measured()) == 1

    def test_it_stays_as_long_as_somebody_else_holds_it(self, tmp_path, monkeypatch):
        """Who holds it is opening it, perhaps, and would be left with a file without a name."""
        holder = storage.JournalLock(tmp_path / "study.log")
        monkeypatch.setattr(storage, "PATIENCE_S", 0.0)
        with opened(tmp_path):
            holder.acquire()
        assert (tmp_path / "study.log").exists()
        holder.release()

    def test_a_study_that_was_removed_is_said_and_not_begun_in_the_middle(self, tmp_path):
        with opened(tmp_path) as study:
            study.tell(study.ask(), ok())
            (tmp_path / "study.log").unlink()
            with pytest.raises(CacheError, match="removed meanwhile"):
                study.ask()
        assert list(tmp_path.iterdir()) == []


def exhaust(folder):
    with opened(folder, sampler="exhaustive") as study:
        while (proposal := study.ask()) is not None:
            study.tell(proposal, ok())


def test_a_journal_with_a_flipped_bit_is_told_in_a_line(tmp_path):
    """Optuna finds some damage only when the study goes on: other values of a parameter."""
    with opened(tmp_path) as study:
        for _ in range(4):
            study.tell(study.ask(), ok())
    journal = tmp_path / "study.log"
    text = journal.read_text()
    assert text.count("[1, 2, 4, 8]") > 1
    journal.write_text(text.replace("[1, 2, 4, 8]", "[1, 2, 4, 9]", 1))
    with pytest.raises(StudyError, match=r"'study' is damaged .*--study; it was left") as told:
        exhaust(tmp_path)
    assert "\n" not in str(told.value)


def test_a_median_that_is_the_trial_s_value_alone_is_read(tmp_path):
    """As studies had it that were made before medians were attributes."""
    with opened(tmp_path) as study:
        trial = study.optuna.ask()
        study._sampler.space.suggest(lambda name: study._suggest(trial, name))
        trial.set_user_attr("outcome", "ok")
        trial.set_user_attr("measurement", {"repeats": 3})
        study.optuna.tell(trial, 2e-3)
        [(_, measurement)] = study.measured()
    assert measurement == Measurement(Outcome.OK, 2e-3, repeats=3)


@pytest.mark.parametrize(
    "attributes",
    [
        {"outcome": ["ok"]},
        {"outcome": {"a": 1}},
        {"outcome": "ok", "measurement": [1, 2]},
        {"outcome": "ok", "measurement": None},
        {"outcome": "ok", "measurement": {"interval_s": [1.0]}},
        {"outcome": "ok", "measurement": {"repeats": "many"}},
        {"outcome": "ok", "measurement": {"details": [1]}},
    ],
)
def test_attributes_that_no_measurement_has_are_none(tmp_path, attributes):
    with opened(tmp_path) as study:
        study.tell(study.ask(), ok())
        trial = study.optuna.ask()
        study._sampler.space.suggest(lambda name: study._suggest(trial, name))
        for key, value in attributes.items():
            trial.set_user_attr(key, value)
        study.optuna.tell(trial, 1.0)
        assert len(study.measured()) == 1
    stored = read_study("study", None, tmp_path)
    assert [each.measurement is None for each in stored.trials] == [False, True]
