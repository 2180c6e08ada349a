"""Recordings as tables, a configuration a row: CSV, and Parquet and Arrow where pyarrow is."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from autotune.core import checks
from autotune.core.configuration import Value
from autotune.core.errors import InputError, MissingDependencyError
from autotune.core.installing import install_hint
from autotune.core.printable import first_line, shown
from autotune.research.space import MOST_CONFIGURATIONS, Entry, Recording
from autotune.research.swept import SUBJECT, measured, read_goal, read_measured, written_goal

_FIRST = ("family", "outcome", "median_s", "low_s", "high_s", "repeats", "reason")
CSV_COLUMNS = (*_FIRST, "seconds", "samples_s", "details")
"""The first columns; those after them are parameters, empty where a family lacks one."""

_OLD_COLUMNS = ("family", "configuration", *_FIRST[1:5], "reason")
"""Those of earlier files, where the configuration is one JSON object; others had `_FIRST`."""

_LONGEST_HEADER = 10_000

_ABOUT = b"autotune"
"""Key of a table's metadata: what is known besides its rows, as JSON."""

ARROW_MARKS = (b"PAR1", b"ARROW1")
"""First bytes of Parquet and of Arrow's files."""


def write_csv(entries: Iterable[Entry]) -> str:
    """Entries in seconds as CSV, with a column for each parameter; samples and details as JSON.

    It has no place for the device and for where the measurements are from.
    """
    parameters, rows = _rows(entries)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*CSV_COLUMNS, *parameters])
    for fields, values in rows:
        for name in ("samples_s", "details"):
            fields[name] = json.dumps(fields[name]) if fields[name] else None
        cells = (_cell(values[name]) if name in values else None for name in parameters)
        writer.writerow([*(fields[name] for name in CSV_COLUMNS), *cells])
    return out.getvalue()


def _rows(
    entries: Iterable[Entry],
) -> tuple[list[str], list[tuple[dict[str, Any], Mapping[str, Value]]]]:
    """The parameters of all entries, and of each its fields by column and its values."""
    parameters, rows = dict[str, None](), []
    for entry in entries:
        low_s, high_s = entry.interval or (None, None)
        fields = {**dict.fromkeys(CSV_COLUMNS), **measured(entry), "low_s": low_s}
        rows.append((fields | {"high_s": high_s}, entry.configuration))
        parameters |= dict.fromkeys(entry.configuration)
    return list(parameters), rows


def _cell(value: Value) -> str:
    """A value as it is read again: text as it is, unless it reads like something else."""
    return value if isinstance(value, str) and _value(value) == value else json.dumps(value)


def _value(cell: str) -> Any:
    """The value of a cell: a number, true, false, or text; None where it is empty."""
    if not cell:
        return None
    try:
        value = json.loads(cell)
    except (ValueError, RecursionError):
        return cell
    return value if isinstance(value, str | int | float) else cell


def is_csv(content: str) -> bool:
    """Recognise a sweep's CSV."""
    return content.startswith((",".join(CSV_COLUMNS[:4]), ",".join(_OLD_COLUMNS[:4])))


def is_foreign_csv(content: str) -> bool:
    """Recognise a table of another program: its first line has names with commas or the like."""
    first = content.lstrip()[:_LONGEST_HEADER].partition("\n")[0]
    return bool(re.match(r"[\w\"' #.-]+[,;\t]", first))


def read_csv(content: str, name: str) -> Recording:
    """A sweep as `write_csv` writes it, or as it once did.

    Raises:
        InputError: a field is missing or not what it should be.
    """
    return Recording(_csv_rows(content), name, unit="s", format="sweep (CSV)")


def _csv_rows(content: str) -> Iterator[Entry]:
    rows = enumerate(csv.reader(io.StringIO(content)), start=1)
    number, columns = 0, list[str]()
    try:
        for number, row in rows:
            if not columns:
                columns = row
            elif row:  # a line may be empty
                yield _csv_entry(columns, row, f"line {number}")
    except csv.Error as error:
        raise InputError(f"line {number + 1}: not usable CSV: {error}") from error


def _csv_entry(columns: list[str], row: list[str], where: str) -> Entry:
    count = len(CSV_COLUMNS if tuple(columns[: len(CSV_COLUMNS)]) == CSV_COLUMNS else _FIRST)
    cells = dict(zip(columns[:count], row, strict=False))
    is_old = "configuration" in columns[:count]
    try:
        if is_old:
            found = json.loads(cells.get("configuration", ""))
        else:
            values = zip(columns[count:], map(_value, row[count:]), strict=False)
            found = {name: value for name, value in values if value is not None}
        numbers: dict[str, Any] = {
            column: float(text) if (text := cells.get(column)) else None
            for column in ("median_s", "low_s", "high_s", "seconds")
        }
        numbers["repeats"] = int(cells.get("repeats") or 0)
        for column in ("samples_s", "details"):
            numbers[column] = json.loads(cells.get(column) or "null")
    except (ValueError, RecursionError) as error:
        wanted = "a configuration as JSON, " if is_old else ""
        raise InputError(
            f"{where}: expected {wanted}times in seconds and a whole number of repeats ({error})"
        ) from error
    return _entry({**cells, "configuration": found, **numbers}, where)


def _entry(fields: dict[str, Any], where: str) -> Entry:
    """The entry of fields by column and a configuration."""
    if fields.get("high_s"):
        fields["interval_s"] = [fields["low_s"], fields["high_s"]]
    return read_measured(fields, where)


def _arrow() -> Any:
    """Arrow's module.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependencyError(
            f"Parquet and Arrow files need pyarrow: {install_hint('arrow')}"
        ) from error
    return pyarrow


def write_arrow(recording: Recording, *, parquet: bool) -> bytes:
    """A recording as Parquet, or as an Arrow file: typed columns, and all else as metadata.

    A parameter whose values are of several types is a column of JSON texts.

    Raises:
        InputError: its times have no unit, or a parameter has the name of another column.
        MissingDependencyError: pyarrow is not installed.
    """
    arrow = _arrow()
    parameters, rows = _rows(recording.in_unit("s").entries)
    if taken := next((name for name in parameters if name in CSV_COLUMNS), ""):
        raise InputError(f"a parameter must not be called {taken!r}, as a column is: rename it")
    columns: dict[str, list[Any]] = {
        name: [fields[name] for fields, _ in rows] for name in CSV_COLUMNS
    }
    columns["details"] = [json.dumps(each) if each else None for each in columns["details"]]
    as_json = []
    for name in parameters:
        column = [values.get(name) for _, values in rows]
        if len({type(value) for value in column} - {type(None)}) > 1:
            as_json.append(name)
            column = [None if value is None else json.dumps(value) for value in column]
        columns[name] = column
    samples = arrow.array(columns["samples_s"], arrow.list_(arrow.float64()))
    table = arrow.table(columns | {"samples_s": samples})
    subject = {key: recording.subject[key] for key in SUBJECT if key in recording.subject}
    about = {"name": recording.name, "device": recording.device, "subject": subject}
    about |= {"provenance": dict(recording.provenance), "json": as_json}
    about["objective"] = written_goal(recording.goal)
    table = table.replace_schema_metadata({_ABOUT: json.dumps(about)})
    out = arrow.BufferOutputStream()
    if parquet:
        arrow.parquet.write_table(table, out, compression="zstd")
    else:
        with arrow.ipc.new_file(out, table.schema) as writer:
            writer.write_table(table)
    content: bytes = out.getvalue().to_pybytes()
    return content


def read_arrow(content: bytes, name: str) -> Recording:
    """Recording of a table that `write_arrow` wrote; one without metadata names no device.

    Raises:
        InputError: it is damaged, or a field is missing or not what it should be.
        MissingDependencyError: pyarrow is not installed.
    """
    arrow = _arrow()
    try:
        source = arrow.BufferReader(content)
        if content.startswith(ARROW_MARKS[0]):
            kept = arrow.parquet.read_metadata(source)
            if max(kept.num_rows, kept.num_rows * kept.num_columns // 20) > MOST_CONFIGURATIONS:
                raise InputError(f"a table may have {MOST_CONFIGURATIONS:,} rows of 20 columns")
            table = arrow.parquet.read_table(source)
        else:
            table = arrow.ipc.open_file(source).read_all()
        table.validate(full=True)  # what is damaged would end the process
        about = json.loads((table.schema.metadata or {}).get(_ABOUT, b"{}"))
    except (arrow.ArrowException, OSError, ValueError, RecursionError) as error:
        raise InputError(f"not a usable table: {first_line(error)}") from error
    about = checks.mapping("metadata", about)
    missing = [column for column in _FIRST[:3] if column not in table.column_names]
    if missing:
        columns = shown(table.column_names)
        raise InputError(f"expected the column {missing[0]!r} of a sweep's table, got {columns}")
    as_json = set(checks.sequence("metadata.json", about.get("json", [])))
    return Recording(
        _arrow_rows(table, as_json),
        checks.line("name", about.get("name", name)),
        unit="s",
        device=checks.line("device", about.get("device", "")),
        format="sweep (table)",
        subject=checks.mapping("subject", about.get("subject", {})),
        provenance=checks.mapping("provenance", about.get("provenance", {})),
        goal=read_goal(about.get("objective", "time")),
    )


def _arrow_rows(table: Any, as_json: set[str]) -> Iterator[Entry]:
    number = 0
    for batch in table.to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            where = f"row {number}"
            fields = {name: row.pop(name, None) for name in CSV_COLUMNS}
            try:
                fields["details"] = json.loads(fields["details"] or "null")
                values = {
                    name: json.loads(value) if name in as_json else value
                    for name, value in row.items()
                    if value is not None
                }
            except (TypeError, ValueError, RecursionError) as error:
                raise InputError(f"{where}: expected JSON ({error})") from error
            yield _entry({**fields, "configuration": values}, where)
            number += 1
