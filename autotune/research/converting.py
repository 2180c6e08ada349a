"""Recordings from one format into another."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from pathlib import Path

from autotune.core.errors import InputError, UnknownNameError
from autotune.core.writing import deliver
from autotune.research import kernel_tuner, ktt, swept, t4, tables
from autotune.research.formats import open_recording
from autotune.research.space import Recording


def _csv(recording: Recording) -> str:
    if recording.goal is not None:
        raise InputError(
            f"a sweep's CSV is compared by times, and this recording by {recording.goal.name}: "
            "write .json or .parquet"
        )
    return tables.write_csv(recording.in_unit("s").entries)


WRITERS: Mapping[str, Callable[[Recording], str | bytes]] = {
    "sweep": swept.write_sweep,
    "csv": _csv,
    "parquet": lambda recording: tables.write_arrow(recording, parquet=True),
    "arrow": lambda recording: tables.write_arrow(recording, parquet=False),
    "kernel-tuner": kernel_tuner.write_kernel_tuner,
    "t4": t4.write_t4,
    "ktt": ktt.write_ktt,
    "t1": ktt.write_t1,
}
"""Formats that can be written, by name."""

_ENDS: Mapping[str, str] = {
    ".kt.json": "kernel-tuner",
    ".t4.json": "t4",
    ".ktt.json": "ktt",
    ".t1.json": "t1",
    ".json": "sweep",
    ".csv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
}
"""Formats by the end of a file's name."""


def format_of(path: Path, to: str | None = None) -> str:
    """The format that a file is to have: the one asked for, or that of its name.

    Raises:
        InputError: its name says none.
        UnknownNameError: there is no format of that name.
    """
    if to is not None:
        if to not in WRITERS:
            raise UnknownNameError(f"a format must be one of {', '.join(WRITERS)}, got {to!r}")
        return to
    found = named_format(path)
    if found is None:
        raise InputError(
            f"a recording ends in one of {', '.join(_ENDS)}, got {path.name!r}: name it so, or "
            "give its format"
        )
    return found


def named_format(path: Path) -> str | None:
    """The format that a file's name says; None where it says none."""
    name = path.name.lower().removesuffix(".gz")
    return next((found for end, found in _ENDS.items() if name.endswith(end)), None)


def convert(source: Path | str, target: Path | str, to: str | None = None) -> str:
    """Write a recorded file in another format, and return what that has no place for.

    Times keep their digits where the unit changes. Whatever else the entries have is written
    under a key of ours where the other format has none, so that it comes back.

    Args:
        source: any file that `read_recorded` or `read_space` reads.
        target: the file to write; compressed where its name ends in `.gz`.
        to: one of `WRITERS`; None goes by the name.

    Raises:
        InputError: the source cannot be read, or the format cannot hold it.
        MissingDependencyError: the format needs a package.
        AutotuneError: the target cannot be written.
    """
    target = Path(target)
    chosen = format_of(target, to)
    with open_recording(source) as recording:
        content = WRITERS[chosen](recording)
    packed = content.encode() if isinstance(content, str) else content
    deliver(target, gzip.compress(packed, mtime=0) if target.suffix == ".gz" else packed)
    if chosen == "t1":
        return "a T1 file has the space alone, and no measurements"
    if chosen == "ktt" and recording.goal is not None:
        return f"KTT's results are of times: only here they are compared by {recording.goal.name}"
    lost = recording.device or recording.subject or recording.provenance
    return "CSV has no place for the device and provenance" if chosen == "csv" and lost else ""
