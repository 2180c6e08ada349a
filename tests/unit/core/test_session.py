"""What a process remembers: caches that are registered, forgotten and counted, and its forks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.core import session

PACKAGE = Path(session.__file__).parents[1]


def double(number: int) -> int:
    return 2 * number


def test_remembered_values_are_made_once_and_forgotten() -> None:
    made: list[int] = []

    def make(number: int) -> int:
        made.append(number)
        return double(number)

    remembered = session.Remembered(make)
    assert [remembered[(3,)], remembered[(3,)]] == [6, 6]
    remembered[(3,)] = 7
    assert (remembered[(3,)], made) == (7, [3])
    session.forget()
    assert (remembered[(3,)], made) == (6, [3, 3])


def test_the_oldest_key_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MOST", 2)
    remembered = session.Remembered(double)
    assert [remembered[(number,)] for number in range(3)] == [0, 2, 4]
    assert [*remembered] == [(1,), (2,)]


@pytest.mark.parametrize("lasting", [False, True])
def test_what_is_kept_is_counted_and_lasts_where_it_must(lasting: bool) -> None:
    held = session.keep("held in this test", {"one": 1}, lasting=lasting)
    function = session.cached(lasting=lasting)(double)
    function(2)
    names = "held in this test", f"{__name__}.double"
    assert [session.contents()[name] for name in names] == [1, 1]
    heard: list[str] = []
    session.on_forget(lambda: heard.append("forgotten"))
    session.forget()
    assert [session.contents()[name] for name in names] == [int(lasting)] * 2
    assert (len(held), heard) == (int(lasting), ["forgotten"])


def test_forks_are_heard_of_in_order_and_whatever_one_of_them_raises() -> None:
    script = """
import os, sys
from autotune.core import session
told = []
session.at_fork(before=lambda: told.append("before 1"), child=lambda: told.append("child 1"))
session.at_fork(before=lambda: 1 / 0, child=lambda: 1 / 0, parent=lambda: told.append("parent"))
session.at_fork(before=lambda: told.append("before 3"), child=lambda: told.append("child 3"))
child = os.fork()
if child:
    os.waitpid(child, 0)
print(*told, sep=", ", flush=True)
os._exit(0)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines() == [
        "before 3, before 1, child 1, child 3",
        "before 3, before 1, parent",
    ]
    assert ran.stderr.count("ZeroDivisionError") == 2


def test_there_is_one_hook_of_forks() -> None:
    found = [file for file in PACKAGE.rglob("*.py") if "os.register_at_fork" in file.read_text()]
    assert found == [PACKAGE / "core" / "session.py"]
