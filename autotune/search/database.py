"""Studies in a database: anything Optuna reaches through SQLAlchemy."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeGuard, cast

from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import BaseStorage, RDBStorage, get_storage
from optuna.trial import TrialState
from sqlalchemy import create_engine, event, inspect
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    OperationalError,
    PendingRollbackError,
    ProgrammingError,
    SQLAlchemyError,
)

from autotune.core.errors import MissingDependencyError, StudyError
from autotune.core.printable import first_line
from autotune.search.internals import interrupt_waits

_log = logging.getLogger(__name__)

_PACKAGES = {
    "psycopg": "'psycopg[binary]'",
    "psycopg2": "psycopg2-binary",
    "MySQLdb": "mysqlclient",
    "pymysql": "PyMySQL",
}
"""Packages that bring the module of a driver."""

_TABLE = "studies"
"""One of those that Optuna makes."""

_CREATION_RETRIES = 10
_CREATION_PAUSE_S = 0.1

PATIENCE_S = 60.0
"""Time to wait for a server that has gone away. With the silence before it, that is less than
`claims.LEASE_S`: no worker takes another for dead."""

_PAUSE_S = 0.25


def open_database(url: str) -> BaseStorage:
    """Open an Optuna database, creating its tables when it is new; errors as of `open_storage`.

    What is asked of a server that goes away, as for a restart, waits for it for a minute.
    """
    parsed = _parsed(url)
    on_file = parsed.get_backend_name() == "sqlite"
    # Several workers may write at once; SQLite's default patience is five seconds.
    engine: dict[str, Any] | None = {"connect_args": {"timeout": 60}} if on_file else None
    with _opening(parsed):
        # With patience while another process is creating the same tables.
        for _ in range(_CREATION_RETRIES):
            try:
                return _lasting(RDBStorage(url, engine_kwargs=engine), on_file)
            except (IntegrityError, OperationalError, ProgrammingError) as error:
                if not isinstance(error, IntegrityError) and "already exists" not in str(error):
                    raise
                time.sleep(_CREATION_PAUSE_S)
        return _lasting(RDBStorage(url, engine_kwargs=engine), on_file)


def _lasting(database: RDBStorage, on_file: bool) -> BaseStorage:
    """The database as Optuna uses it, with patience, and closed by `remove_session`."""

    def close() -> None:
        database.remove_session()
        database.engine.dispose()

    inner = get_storage(database)
    outage = _Outage(database.engine, 0.0 if on_file else PATIENCE_S)
    calls = {
        name: outage.outlasted(getattr(inner, name)) for name in BaseStorage.__abstractmethods__
    }

    def end(trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        lost = outage.count
        try:
            return bool(ended(trial_id, state, values))
        except UpdateFinishedTrialError:
            # A first attempt may have ended it whose answer was lost.
            if lost == outage.count or calls["get_trial"](trial_id).state is not state:
                raise
            return True

    ended = calls["set_trial_state_values"]
    calls |= {"set_trial_state_values": end, "remove_session": close}
    members = {name: staticmethod(call) for name, call in calls.items()}
    return cast("BaseStorage", type("LastingStorage", (BaseStorage,), members)())


class _Outage:
    """Silence of a server: from its first failed answer to the next transaction that it ends.

    Patience is counted once for all calls and threads of a storage: who closes a study whose
    server is gone for good does not wait for it again and again.

    Attributes:
        count: calls that were made again.
    """

    def __init__(self, engine: Engine, patience_s: float) -> None:
        self._patience_s = patience_s
        self._ends: float | None = None
        self.count = 0
        # Optuna remembers some answers, so that one does not show that the server is back.
        event.listen(engine, "commit", self._end)

    def outlasted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, made again until the server is back, or is waited for no longer."""

        def made(*args: Any, **kwargs: Any) -> Any:
            while True:
                try:
                    return call(*args, **kwargs)
                except (SQLAlchemyError, StorageInternalError) as error:
                    if not self._waits(error):
                        raise
                    self.count += 1

        return made

    def _end(self, connection: Connection) -> None:
        self._ends = None

    def _waits(self, error: Exception) -> bool:
        """Pause before another attempt; False when there should be none."""
        cause = error.__cause__ if isinstance(error, StorageInternalError) else error
        if not self._patience_s or not _may_pass(cause):
            return False
        now, ends = time.monotonic(), self._ends
        if ends is None:
            ends = now + self._patience_s
            followed = isinstance(cause, PendingRollbackError) and cause.__context__
            _log.warning(
                "the studies' database does not answer (%s): waiting for it, for up to %g s",
                first_line(followed or cause),
                self._patience_s,
            )
        self._ends = now if interrupt_waits() else ends
        if now >= self._ends:
            return False
        time.sleep(_PAUSE_S)
        return True


def _may_pass(cause: BaseException | None) -> TypeGuard[SQLAlchemyError]:
    """An error of the server's state or of the way to it, and not of what was asked."""
    # The second is what follows the first where Optuna tries a query in another way.
    if isinstance(cause, OperationalError | PendingRollbackError):
        return True
    return isinstance(cause, DBAPIError) and cause.connection_invalidated


@contextmanager
def _opening(parsed: URL) -> Iterator[None]:
    """Report faults in one line that shows no password."""
    shown = parsed.render_as_string(hide_password=True)
    try:
        yield
    except ImportError as error:
        raise MissingDependencyError(
            f"storage {shown} needs a database driver: {_remedy(error)}"
        ) from error
    except (SQLAlchemyError, RuntimeError, ValueError) as error:
        raise StudyError(f"cannot open storage {shown}: {first_line(error)}") from error


def file_of(url: str) -> Path | None:
    """The file of an SQLite database, which need not be there; None of any other.

    Raises:
        StudyError: the URL is no URL.
    """
    parsed = _parsed(url)
    name = parsed.database
    if parsed.get_backend_name() != "sqlite" or not name or name == ":memory:":
        return None
    return Path(name.removeprefix("file:").partition("?")[0] if name.startswith("file:") else name)


def check_there(url: str) -> None:
    """Refuse a database that is only to be read, and would have to be made.

    Raises:
        StudyError: the URL is no URL, there is no such database, or it holds no studies.
        MissingDependencyError: its driver is not installed.
    """
    parsed, path = _parsed(url), file_of(url)
    shown = parsed.render_as_string(hide_password=True)
    if path is not None and not path.is_file():
        raise StudyError(f"storage {shown} is to be read, and there is no file {path}")
    with _opening(parsed):
        engine = create_engine(parsed)
        try:
            has_studies = inspect(engine).has_table(_TABLE)
        finally:
            engine.dispose()
    if not has_studies:
        raise StudyError(f"storage {shown} is to be read, and holds no studies: name another one")


def _parsed(url: str) -> URL:
    try:
        return make_url(url)
    except (SQLAlchemyError, ValueError) as error:
        raise StudyError(
            f"{url!r} is not a storage URL: use one such as sqlite:///studies.db"
        ) from error


def _remedy(error: ImportError) -> str:
    """The package to install, from the error behind Optuna's own, which does not say it."""
    cause = error.__cause__ if isinstance(error.__cause__, ImportError) else error
    module = (cause.name or "").partition(".")[0]
    if cause.name != module or not module:
        # The driver is there, and cannot be imported: a library that it needs is not.
        return first_line(cause)
    return (
        f"pip install {_PACKAGES.get(module, module)}, or name one that is installed in the URL, "
        "as in postgresql+psycopg2://"
    )
