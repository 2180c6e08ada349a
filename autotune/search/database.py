"""Studies in a database: anything Optuna reaches through SQLAlchemy."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from optuna.storages import RDBStorage
from sqlalchemy import create_engine, inspect
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError, SQLAlchemyError

from autotune.core.errors import MissingDependencyError, StudyError
from autotune.core.printable import first_line

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


def open_database(url: str) -> RDBStorage:
    """Open an Optuna database, creating its tables when it is new; errors as of `open_storage`."""
    parsed = _parsed(url)
    # Several workers may write at once; SQLite's default patience is five seconds.
    engine: dict[str, Any] | None = (
        {"connect_args": {"timeout": 60}} if parsed.get_backend_name() == "sqlite" else None
    )
    with _opening(parsed):
        # With patience while another process is creating the same tables.
        for _ in range(_CREATION_RETRIES):
            try:
                return RDBStorage(url, engine_kwargs=engine)
            except (IntegrityError, OperationalError, ProgrammingError) as error:
                if not isinstance(error, IntegrityError) and "already exists" not in str(error):
                    raise
                time.sleep(_CREATION_PAUSE_S)
        return RDBStorage(url, engine_kwargs=engine)


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
