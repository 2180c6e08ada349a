from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autotune.core.deadline import Deadline
from autotune.core.errors import AutotuneError, InputError, OutOfTimeError, WorkerError
from autotune.measuring import processes
from autotune.measuring.failure import Failure, FailureKind
from autotune.measuring.processes import WorkerProcess
from autotune.measuring.sharing import SharedWorker, Subjects, WorkerPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONG_S = 60.0
"""Far longer than anything here takes."""

CHECKOUT = Path(__file__).parents[3]


def worker_entry(*arguments: Any) -> Callable[[tuple[str, Any]], Any]:
    """Runs in the child: does as it is told, and counts."""
    state = {"calls": 0}

    def handle(request: tuple[str, Any]) -> Any:
        state["calls"] += 1
        name, value = request
        match name:
            case "echo":
                return value
            case "arguments":
                return arguments
            case "calls":
                return state["calls"]
            case "environment":
                return os.environ.get(value)
            case "pid":
                return os.getpid()
            case "main":
                return getattr(sys.modules["__main__"], "__file__", None)
            case "sleep":
                time.sleep(value)
                return value
            case "hang":
                while True:
                    pass
            case "exit":
                os._exit(value)
            case "crash":
                ctypes.string_at(0)
            case "abort":
                os.write(2, b"first line\nheap corrupted\n")
                os.abort()
            case "raise":
                raise ValueError(value)
            case "print":
                print(value)
                os.write(1, value.encode())
                sys.stdout.flush()
            case "grandchild":
                return subprocess.Popen(["sleep", "1000"]).pid
            case "daemon":
                started = subprocess.Popen(["sleep", "1000"], start_new_session=True)
                return started.pid
            case "sockets":
                return sockets()
            case "forge":
                for descriptor in sockets():
                    os.write(descriptor, value)
            case "later":  # what a kernel has left behind shows when it is another's turn
                threading.Thread(target=abort_once_asked, args=(state, state["calls"])).start()
            case "grow":
                state["kept"] = b"x" * value
            case "flags":
                return [getattr(sys.flags, name) for name in value], list(sys.warnoptions)
            case "interrupt":
                os.kill(os.getpid(), signal.SIGINT)
                return "still here"
        return None

    return handle


def sockets() -> list[int]:
    """Descriptors of the sockets of this process, as a kernel would look for them."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(entry.readlink()).startswith("socket:"):
                found.append(int(entry.name))
    return found


def abort_once_asked(state: dict[str, Any], calls: int) -> None:
    while state["calls"] == calls:
        time.sleep(0.01)
    os.abort()


def failing_entry() -> Callable[[Any], Any]:
    raise RuntimeError("no operands for you")


def refusing_entry() -> Callable[[Any], Any]:
    raise InputError("a reference gives another shape")


def dying_entry() -> Callable[[Any], Any]:
    os._exit(7)


def once_dying_entry(mark: Path) -> Callable[[Any], Any]:
    """Killed when it starts for the first time, as by somebody short of memory."""
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return lambda request: request


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    with WorkerProcess(worker_entry, "first", 2, environment={"AUTOTUNE_X": "y"}) as process:
        yield process


def running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pid: int) -> bool:
    """Whether a process ends within a while."""
    for _ in range(200):
        if not running(pid):
            return True
        time.sleep(0.05)
    return False


def test_requests_are_answered_by_one_child(worker: WorkerProcess) -> None:
    assert worker.pid is None
    assert worker.call(("arguments", None), LONG_S) == ["first", 2]
    assert worker.call(("environment", "AUTOTUNE_X"), LONG_S) == "y"
    assert worker.call(("calls", None), LONG_S) == 3
    assert worker.call(("pid", None), LONG_S) == worker.pid != os.getpid()


def test_large_requests_and_replies_pass(worker: WorkerProcess) -> None:
    payload = os.urandom(5_000_000)
    assert worker.call(("echo", payload), LONG_S) == payload


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("request_", "kind", "reason"),
    [
        (("hang", None), FailureKind.TIMED_OUT, "no result within 0.5 s: killed"),
        (("exit", 3), FailureKind.DIED, "exit code 3"),
        (("exit", 0), FailureKind.DIED, "exit code 0"),
        (("crash", None), FailureKind.DIED, "killed by SIGSEGV"),
        (("abort", None), FailureKind.DIED, "killed by SIGABRT: heap corrupted"),
    ],
)
def test_a_lost_child_is_reported_and_replaced(
    worker: WorkerProcess, request_: tuple[str, Any], kind: FailureKind, reason: str
) -> None:
    first = worker.call(("pid", None), LONG_S)
    timeout_s = 0.5 if kind is FailureKind.TIMED_OUT else LONG_S
    # The request before may be to blame for a death, but not for a time that is over.
    innocent = kind is FailureKind.DIED
    assert worker.call(request_, timeout_s) == Failure(kind, reason, innocent=innocent)
    assert gone(first)
    assert worker.call(("pid", None), LONG_S) != first
    assert worker.call(("calls", None), LONG_S) == 2


class Exploit:
    """Runs code where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._mark,)


@pytest.mark.parametrize("number", [b"", b"0123456789abcdef"])
def test_what_a_kernel_writes_to_the_socket_is_neither_run_nor_believed(
    worker: WorkerProcess, number: bytes, tmp_path: Path
) -> None:
    mark = tmp_path / "ran"
    assert worker.call(("echo", 1), LONG_S) == 1
    for content in (pickle.dumps(Exploit(mark)), b"7"):
        message = struct.pack("!Q", len(number + content)) + number + content
        reply = worker.call(("forge", message), LONG_S)
        assert isinstance(reply, Failure)
        assert reply.kind is FailureKind.DIED
        assert "sent what is no reply" in reply.reason
        assert "\n" not in reply.reason
        assert not mark.exists()
        assert worker.call(("echo", 1), LONG_S) == 1


def test_half_a_message_of_a_kernels_is_not_waited_for(worker: WorkerProcess) -> None:
    worker.call(("echo", 1), LONG_S)
    reply = worker.call(("forge", struct.pack("!Q", 1 << 29)), 0.5)
    assert reply.kind in (FailureKind.TIMED_OUT, FailureKind.DIED)
    assert worker.call(("echo", 1), LONG_S) == 1


def test_replies_are_of_the_form_that_was_asked_for() -> None:
    with WorkerProcess(worker_entry, replies=int | None) as worker:
        assert worker.call(("echo", 1), LONG_S) == 1
        failure = worker.call(("echo", "text"), LONG_S)
        assert failure.kind is FailureKind.DIED
        assert "sent what is no reply" in failure.reason
        assert worker.call(("raise", "x"), LONG_S).kind is FailureKind.RAISED


def test_what_is_no_data_is_a_reply_that_raised(worker: WorkerProcess) -> None:
    pid = worker.call(("pid", None), LONG_S)
    failure = worker.call(("echo", threading.Event), LONG_S)
    assert (failure.kind, worker.pid) == (FailureKind.RAISED, pid)


def test_the_socket_has_no_number_that_is_easily_guessed(worker: WorkerProcess) -> None:
    numbers = set()
    for _ in range(4):
        (number,) = worker.call(("sockets", None), LONG_S)
        assert number >= 64
        numbers.add(number)
        worker.close()
    assert len(numbers) > 1


class TestBlame:
    """A death may be the doing of what ran before, or of somebody outside."""

    def test_who_dies_in_a_used_process_is_asked_again_in_a_fresh_one(
        self, worker: WorkerProcess
    ) -> None:
        worker.call(("later", None), LONG_S)
        failure = worker.call(("sleep", 30), LONG_S)
        assert (failure.kind, failure.innocent) == (FailureKind.DIED, True)
        worker.call(("later", None), LONG_S)
        assert worker.insist(("sleep", 0.5), LONG_S) == 0.5

    def test_who_dies_in_a_fresh_process_is_to_blame(self, worker: WorkerProcess) -> None:
        failure = worker.call(("crash", None), LONG_S)
        assert (failure.kind, failure.innocent) == (FailureKind.DIED, False)
        worker.call(("echo", 1), LONG_S)
        assert not worker.insist(("crash", None), LONG_S).innocent

    def test_who_is_killed_from_outside_is_asked_again(self, tmp_path: Path) -> None:
        with WorkerPool(once_killed_entry, tmp_path / "mark", count=1) as pool:
            assert pool.run(["anything"], LONG_S) == ["anything"]
            assert (tmp_path / "mark").exists()

    def test_a_process_killed_while_it_makes_operands_is_replaced(self, tmp_path: Path) -> None:
        shared = SharedWorker(once_lost_subjects, tmp_path / "mark")
        try:
            assert shared.call("one", "a", LONG_S) == ["one", "a"]
            assert shared.call("two", "b", LONG_S) == ["two", "b"]
            assert (tmp_path / "mark").exists()
        finally:
            shared.close()


def once_killed_entry(mark: Path) -> Callable[[Any], Any]:
    """Killed at its first request, as by somebody short of memory."""

    def handle(request: Any) -> Any:
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return request

    return handle


def once_lost_subjects(mark: Path, first: str) -> Subjects:
    """Killed when it makes what the second subject needs, the first time."""

    def make(subject: str) -> Callable[[str], Any]:
        if subject == "two" and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return lambda request: (subject, request)

    return Subjects(make, first, weigh=len, limit=6)


class TestRenewal:
    """Compilers keep something of everything that they compile."""

    def test_a_worker_is_replaced_after_some_answers(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(processes, "RENEW_ANSWERS", 2)
        with WorkerPool(worker_entry, count=1, renewed=True) as pool:
            pids = [pool.run([("pid", None)], LONG_S)[0] for _ in range(6)]
        assert len(set(pids)) == 3
        assert all(map(gone, pids))

    @pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell")
    def test_a_worker_is_replaced_when_it_has_grown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(processes, "RENEW_BYTES", 50_000_000)
        with WorkerPool(worker_entry, count=1, renewed=True) as pool:
            pid, again = (pool.run([("pid", None)], LONG_S)[0] for _ in range(2))
            assert again == pid
            pool.run([("grow", 100_000_000)], LONG_S)
            assert pool.run([("pid", None)], LONG_S)[0] != pid

    def test_others_stay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(processes, "RENEW_ANSWERS", 1)
        with WorkerPool(worker_entry, count=1) as pool:
            assert len({pool.run([("pid", None)], LONG_S)[0] for _ in range(3)}) == 1


@pytest.mark.parametrize("given", [None, "", "/no/such/python"])
def test_without_an_interpreter_it_is_said(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", given)
    with WorkerProcess(worker_entry) as worker, pytest.raises(WorkerError, match="executable"):
        worker.call(("echo", 1), LONG_S)


def test_where_no_files_can_be_opened_it_is_said() -> None:
    script = (
        "import resource, sys; sys.path[:0] = sys.argv[1:]\n"
        "from test_processes import worker_entry, WorkerProcess, WorkerError\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (6, 6))\n"
        "try: WorkerProcess(worker_entry).call(('echo', 1), 60)\n"
        "except WorkerError as error: print(error)\n"
    )
    command = [sys.executable, "-c", script, *sys.path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "a worker process cannot be started" in done.stdout
    assert "ulimit" in done.stdout
    assert done.stdout.count("\n") == 1


def test_where_no_thread_can_be_started_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with WorkerPool(worker_entry, count=1) as pool:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(WorkerError, match="no thread can be started"):
            pool.run([("echo", 1)], LONG_S)


OPTIONS = ("isolated", "ignore_environment", "no_user_site", "safe_path", "optimize", "utf8_mode")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "options", [["-I"], ["-E", "-s", "-P"], ["-O", "-X", "utf8", "-W", "ignore::Warning"]]
)
def test_children_have_their_parents_options(options: list[str], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    script = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from test_processes import worker_entry, WorkerProcess, OPTIONS\n"
        "with WorkerProcess(worker_entry) as worker:\n"
        "    theirs = worker.call(('flags', OPTIONS), 60)\n"
        "ours = [[getattr(sys.flags, each) for each in OPTIONS], sys.warnoptions]\n"
        "print(theirs == ours, ours)\n"
    )
    kept_out = options[0] in ("-I", "-E")
    done = subprocess.run(
        [sys.executable, *options, "-c", script, *sys.path],
        env={**os.environ, "PYTHONPATH": str(tmp_path) if kept_out else ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("True "), (done.stdout, done.stderr)
    assert not (tmp_path / "ran").exists()


def test_an_exception_is_one_line_and_costs_no_child(worker: WorkerProcess) -> None:
    pid = worker.call(("pid", None), LONG_S)
    failure = worker.call(("raise", "two\nlines"), LONG_S)
    assert (failure.kind, failure.reason) == (FailureKind.RAISED, "ValueError: two lines")
    assert "in handle" in failure.trace
    assert worker.call(("pid", None), LONG_S) == pid


def test_a_child_killed_between_requests_is_replaced_unnoticed(worker: WorkerProcess) -> None:
    pid = worker.call(("pid", None), LONG_S)
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)
    assert worker.call(("echo", 1), LONG_S) == 1


def test_a_timeout_kills_what_the_child_started_too(worker: WorkerProcess) -> None:
    grandchild = worker.call(("grandchild", None), LONG_S)
    assert running(grandchild)
    assert worker.call(("hang", None), 0.2).kind is FailureKind.TIMED_OUT
    assert gone(grandchild)


@pytest.mark.parametrize("end", ["hang", "crash", "exit"])
def test_what_left_the_childs_group_ends_with_it_too(worker: WorkerProcess, end: str) -> None:
    daemon = worker.call(("daemon", None), LONG_S)
    assert running(daemon)
    assert isinstance(worker.call((end, 0), 0.5 if end == "hang" else LONG_S), Failure)
    assert gone(daemon)


def test_a_worker_killed_while_it_starts_is_started_again(tmp_path: Path) -> None:
    with WorkerProcess(once_dying_entry, tmp_path / "mark") as worker:
        assert worker.call("anything", LONG_S) == "anything"


def test_a_worker_starts_without_a_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with WorkerProcess(worker_entry) as worker:
        assert worker.call(("echo", 1), LONG_S) == 1


def test_children_do_not_write_to_the_parents_output(
    worker: WorkerProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    worker.call(("print", "chatter"), LONG_S)
    assert capfd.readouterr() == ("", "")


def test_children_leave_ctrl_c_to_the_parent(worker: WorkerProcess) -> None:
    assert worker.call(("interrupt", None), LONG_S) == "still here"
    assert os.getpgid(worker.call(("pid", None), LONG_S)) != os.getpgid(0)


def test_ctrl_c_while_waiting_leaves_no_child_and_no_stale_reply(worker: WorkerProcess) -> None:
    pid = worker.call(("pid", None), LONG_S)
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            worker.call(("sleep", 30), LONG_S)
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert gone(pid)
    assert worker.call(("echo", "fresh"), LONG_S) == "fresh"


def test_close_ends_the_child_and_may_be_repeated(worker: WorkerProcess) -> None:
    pid = worker.call(("pid", None), LONG_S)
    worker.close()
    worker.close()
    assert not Path(f"/proc/{pid}").exists()  # reaped, not only ended
    assert worker.collect().kind is FailureKind.DIED


FORKING = """
import os, sys
sys.path[:0] = sys.argv[1:]
from autotune.measuring.processes import WorkerProcess
from test_processes import worker_entry
worker = WorkerProcess(worker_entry)
pid = worker.call(("pid", None), 60)
child = os.fork()
if child == 0:
    worker.close()
    sys.exit()  # which runs what is to be run at exit
assert os.waitpid(child, 0)[1] == 0
assert worker.call(("pid", None), 60) == pid
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_by_fork_leaves_its_parents_worker_alone() -> None:
    subprocess.run([sys.executable, "-c", FORKING, *sys.path], check=True)


def test_a_forgotten_worker_ends_with_its_object() -> None:
    worker = WorkerProcess(worker_entry)
    pid = worker.call(("pid", None), LONG_S)
    del worker
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("entry", "reason"),
    [(failing_entry, "RuntimeError: no operands for you"), (dying_entry, "exit code 7")],
)
def test_a_worker_that_does_not_start_is_an_error(entry: Callable[..., Any], reason: str) -> None:
    with WorkerProcess(entry) as worker, pytest.raises(AutotuneError, match=reason):
        worker.call("anything", LONG_S)


def test_what_was_given_is_at_fault_and_not_the_worker() -> None:
    told = r"^a reference gives another shape$"
    with WorkerProcess(refusing_entry) as worker, pytest.raises(InputError, match=told):
        worker.call("anything", LONG_S)


def test_a_pool_answers_in_order_whatever_happens_to_some() -> None:
    requests = [("echo", 0), ("exit", 3), ("hang", None), ("raise", "x"), ("echo", 4), ("echo", 5)]
    with WorkerPool(worker_entry, count=2) as pool:
        replies = pool.run(requests, 2.0)
        assert [replies[index] for index in (0, 4, 5)] == [0, 4, 5]
        kinds = [replies[index].kind for index in (1, 2, 3)]
        assert kinds == [FailureKind.DIED, FailureKind.TIMED_OUT, FailureKind.RAISED]
        assert pool.run([], LONG_S) == []
        assert pool.run([("echo", "again")], LONG_S) == ["again"]


def test_a_pool_works_side_by_side() -> None:
    with WorkerPool(worker_entry, count=2) as pool:
        pids = pool.run([("pid", None)] * 2 + [("sleep", 0.3)] * 2, LONG_S)[:2]
        assert len(set(pids)) == 2
    assert all(map(gone, pids))


def test_a_pool_makes_the_workers_that_are_needed() -> None:
    with WorkerPool(worker_entry, count=10**9) as pool:
        pids = [pool.run([("pid", None)], LONG_S)[0] for _ in range(3)]
        assert len(set(pids)) == 1
    assert gone(pids[0])


class CountedClock:
    """Moves on by a second whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_the_end_of_a_run_cuts_a_request_off(worker: WorkerProcess) -> None:
    pid = worker.call(("pid", None), LONG_S)
    with pytest.raises(OutOfTimeError):
        worker.call(("hang", None), LONG_S, Deadline(20.0, CountedClock()))
    assert gone(pid)
    pid = worker.call(("pid", None), LONG_S, Deadline())
    with pytest.raises(OutOfTimeError):
        worker.call(("hang", None), LONG_S, Deadline(0.0))  # which is not even begun
    assert worker.call(("pid", None), LONG_S) == pid


def test_the_end_of_a_run_cuts_a_start_off() -> None:
    with WorkerProcess(worker_entry) as worker:
        with pytest.raises(OutOfTimeError):
            worker.call(("echo", 1), LONG_S, Deadline(2.5, CountedClock()))
        assert worker.pid is None


def test_a_run_that_is_hastened_is_noticed_while_somebody_waits(worker: WorkerProcess) -> None:
    deadline = Deadline()
    worker.call(("echo", 1), LONG_S)
    previous = signal.signal(signal.SIGALRM, lambda *_: deadline.hasten(0.1, grace_s=0.0))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(OutOfTimeError):
            worker.call(("hang", None), LONG_S, deadline)
    finally:
        signal.signal(signal.SIGALRM, previous)


def test_a_pool_keeps_what_was_answered_before_the_end_of_the_run() -> None:
    told: list[int] = []
    deadline = Deadline()

    def answered(count: int) -> None:
        told.append(count)
        if count == 2:
            deadline.hasten(0.0, grace_s=0.0)

    with WorkerPool(worker_entry, count=2) as pool:
        requests = [("echo", 0), ("hang", None), ("echo", 2), ("echo", 3)]
        replies = pool.run(requests, LONG_S, deadline, answered)
        assert replies[1] is None
        assert sum(reply is not None for reply in replies) == 2
        assert told == [0, 1, 2]
        assert pool.run([("echo", "again")], LONG_S) == ["again"]


def subjects_entry(greeting: str, first: str) -> Subjects:
    """Keeps two subjects, which are weighed by their length."""

    def make(subject: str) -> Callable[[str], Any]:
        made = time.monotonic_ns()
        if subject == "impossible":
            raise ValueError("no room")

        def handle(request: str) -> Any:
            if request == "crash":
                os.abort()
            return greeting, subject, request, made

        return handle

    return Subjects(make, first, weigh=len, limit=6)


class TestSharedWorker:
    @pytest.fixture
    def shared(self) -> Iterator[SharedWorker]:
        worker = SharedWorker(subjects_entry, "hello")
        yield worker
        worker.close()

    def test_what_a_subject_needs_is_made_once(self, shared: SharedWorker) -> None:
        one = shared.call("one", "a", LONG_S)
        pid = shared.pid
        assert one[:3] == ["hello", "one", "a"]
        two = shared.call("two", "a", LONG_S)
        assert two[:3] == ["hello", "two", "a"]
        assert shared.call("one", "b", LONG_S)[3] == one[3]
        assert shared.pid == pid
        # A third finds no room beside both: the one that waited longest goes.
        shared.call("six", "a", LONG_S)
        assert shared.call("one", "c", LONG_S)[3] == one[3]
        assert shared.call("two", "b", LONG_S)[3] != two[3]

    def test_it_is_made_while_something_else_is_done(self, shared: SharedWorker) -> None:
        shared.begin("one")
        shared.begin("two")  # while the process starts there is nothing to ask it for
        assert shared.call("one", "a", LONG_S)[1] == "one"
        shared.begin("two")
        shared.begin("two")
        assert shared.call("one", "b", LONG_S)[1] == "one"
        assert shared.call("two", "b", LONG_S)[1] == "two"

    def test_the_process_starts_before_anything_is_known_of_a_subject(
        self, shared: SharedWorker
    ) -> None:
        shared.begin(None)
        pid = shared.pid
        shared.begin(None)
        shared.begin("one")
        assert shared.call("one", "a", LONG_S)[:3] == ["hello", "one", "a"]
        assert shared.pid == pid
        shared.begin(None)
        assert shared.call("two", "a", LONG_S)[1] == "two"

    def test_a_lost_process_is_started_for_whom_it_is_needed(self, shared: SharedWorker) -> None:
        shared.call("one", "a", LONG_S)
        assert shared.call("two", "crash", LONG_S).kind is FailureKind.DIED
        assert shared.pid is None
        assert shared.call("two", "a", LONG_S)[1] == "two"
        assert shared.call("one", "a", LONG_S)[1] == "one"

    def test_what_cannot_be_made_is_an_error(self, shared: SharedWorker) -> None:
        shared.call("one", "a", LONG_S)
        with pytest.raises(AutotuneError, match=r"^operands cannot be made: .*no room"):
            shared.call("impossible", "a", LONG_S)
        assert shared.call("one", "a", LONG_S)[1] == "one"


# How a parent ends, and what it leaves. It prints its child's process id.
PARENT = textwrap.dedent("""
    import os, sys
    sys.path.insert(0, {tests!r})
    from test_processes import worker_entry
    from autotune.measuring.processes import WorkerProcess
    worker = WorkerProcess(worker_entry)
    print(worker.call(("pid", None), 60), worker.call(("main", None), 60), flush=True)
    {ending}
""")

ENDINGS = {
    "returns without closing": "",
    "raises": "raise SystemExit('for some reason')",
    "exits at once": "os._exit(1)",
    "is killed": "os.kill(os.getpid(), 9)",
    "is killed while the child hangs": "worker.submit(('hang', None), 60)\n"
    "import time; time.sleep(0.3); os.kill(os.getpid(), 9)",
    "is interrupted": "os.kill(os.getpid(), 2)",
}


def run_parent(arguments: list[str], text: str | None, cwd: Path) -> tuple[int, str]:
    """Run a parent; the child's process id and what the child takes for its __main__."""
    finished = subprocess.run(
        [sys.executable, *arguments],
        input=text,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        timeout=LONG_S,
        check=False,
    )
    lines = finished.stdout.split("\n")
    assert len(lines) == 2, (finished.stdout, finished.stderr)  # one line: nothing ran twice
    pid, main = lines[0].split()
    return int(pid), main


def parent(ending: str) -> str:
    return PARENT.format(tests=str(Path(__file__).parent), ending=ending)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_no_orphan_is_left_when_the_parent(ending: str, tmp_path: Path) -> None:
    pid, _ = run_parent(["-c", parent(ending)], None, tmp_path)
    try:
        assert gone(pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(["program.py"], None), (["-m", "program"], None), (["-"], parent(""))],
    ids=["script", "module", "stdin"],
)
def test_the_parents_main_is_never_run_again(
    arguments: list[str], text: str | None, tmp_path: Path
) -> None:
    """No ``if __name__ == "__main__"`` is needed, and a parent without a file will do."""
    (tmp_path / "program.py").write_text(parent(""))
    _, main = run_parent(arguments, text, tmp_path)
    assert main == "None"
