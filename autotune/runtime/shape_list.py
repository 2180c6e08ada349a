"""Lists of shapes: which problems a program computes, and how often.

JSON Lines, an object each::

    {"shape": "1024x512x64", "dtype": "float32", "layout": "nt", "target": "cpu", "weight": 12}

`shape` has the sizes in the operation's order. All else may be missing: `operation` (gemm),
`dtype` (float32), `out_dtype`, `layout` (nn), `accuracy` (that of the dtype), `threads`, `target`
(any) and `weight`, a number above 0 (1). Lines of one problem and target add up. Empty lines count
for nothing, and neither does a last line that is not complete: its process was killed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.core.dtypes import DTYPES
from autotune.core.errors import InputError
from autotune.core.reading import read_regular
from autotune.core.suggestions import must_be
from autotune.core.writing import check_lines
from autotune.operations.operation import Operation
from autotune.operations.problem import Problem
from autotune.store import strict_json
from autotune.targets.families import find_operation

LARGEST_LIST = 1 << 26
"""Bytes that a list may have."""

LONGEST_LINE = 1 << 12
"""Characters that a line may have."""

_FIELDS = ("dtype", "out_dtype", "layout", "accuracy", "threads")
_KEYS = ("operation", "shape", *_FIELDS, "target", "weight")


@dataclass(frozen=True, slots=True)
class UsedShape:
    """One problem of a list.

    Attributes:
        problem: what is computed.
        target: where; empty where the list does not say.
        weight: how often.
    """

    problem: Problem
    target: str
    weight: float

    def document(self) -> dict[str, Any]:
        """Object of a line, without what is usual."""
        key = self.problem.key()
        fields = {name: key[name] for name in _FIELDS if key.get(name) is not None}
        accuracy = DTYPES[self.problem.dtype].accuracy
        for name, usual in (("layout", "nn"), ("accuracy", accuracy)):
            if fields.get(name) == usual:
                del fields[name]
        operation = self.problem.operation
        return {
            **({} if operation == "gemm" else {"operation": operation}),
            "shape": "x".join(map(str, self.problem.shape)),
            **fields,
            **({"target": self.target} if self.target else {}),
            "weight": self.weight,
        }


def append(path: Path, used: Iterable[UsedShape]) -> None:
    """Append lines to a list, all or none, whoever else does the same.

    Raises:
        OSError: the file cannot be written, or is a database.
    """
    import fcntl  # late: lists are read on systems without it, too

    check_lines(path)
    text = "".join(f"{strict_json.line(shape.document())}\n" for shape in used).encode()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            _write_at_end(descriptor, text)
        finally:
            # Said, not left to closing: a child by fork may have the descriptor, too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _write_at_end(descriptor: int, text: bytes) -> None:
    end = os.fstat(descriptor).st_size
    # A line that somebody was killed in, or that an editor left open, stays a line of its own.
    if end and os.pread(descriptor, 1, end - 1) != b"\n":
        text = b"\n" + text
    try:
        done = 0
        while done < len(text):
            done += os.pwrite(descriptor, text[done:], end + done)
    except OSError:
        os.ftruncate(descriptor, end)
        raise


def read_shapes(
    path: Path, operation: str = "gemm", extra_families: Sequence[Path] = ()
) -> list[UsedShape]:
    """The problems of one operation in a list, each once for every target, the heaviest first.

    Args:
        path: of the list.
        operation: the operation's name; lines of others are passed over.
        extra_families: folders of families that may define it.

    Raises:
        InputError: the file cannot be read or does not fit the format; the message names file and
            line.
    """
    defined = find_operation(operation, extra_families)
    found: dict[tuple[Problem, str], float] = {}
    for number, text in _lines(path):
        try:
            if len(text) > LONGEST_LINE:
                raise InputError(f"a line may have {LONGEST_LINE} characters, has {len(text)}")
            used = _used(strict_json.parse(text), defined)
        except InputError as error:
            raise InputError(f"{path}:{number}: {error}") from error
        if used is not None:
            place = (used.problem, used.target)
            found[place] = found.get(place, 0) + used.weight
    if not found:
        raise InputError(f"{path} has no shapes of {operation}: name another file or operation")
    shapes = [UsedShape(problem, target, weight) for (problem, target), weight in found.items()]
    return sorted(shapes, key=lambda shape: -shape.weight)


def _lines(path: Path) -> list[tuple[int, str]]:
    """Lines that are not empty, with their numbers.

    A last one that was not finished is passed over, unless it is the only one.
    """
    try:
        text = read_regular(path, LARGEST_LIST).decode("utf-8-sig")
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise InputError(f"{path} must have at most {LARGEST_LIST} bytes") from error
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} must be UTF-8 text: {error}") from error
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if len(lines) > 1 and not text.rstrip(" \t\r").endswith(("\n", "}")):
        del lines[-1]
    return lines


def _used(document: Any, defined: Operation) -> UsedShape | None:
    """One line's problem; None where it is of another operation.

    Raises:
        InputError: it does not fit the format.
    """
    if not isinstance(document, dict):
        raise InputError('a line must be an object, as in {"shape": "64x64x64"}')
    for name in document:
        if name not in _KEYS:
            raise InputError(must_be("a key", name, _KEYS))
    if document.get("operation", "gemm") != defined.name:
        return None
    shape, weight = document.get("shape"), document.get("weight", 1)
    target = document.get("target", "")
    if not isinstance(shape, str) or not isinstance(target, str):
        raise InputError(f"shape must be a text like {defined.shape_text}, and target a name")
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not weight > 0:
        raise InputError(f"weight must be a number above 0, got {weight!r:.40}")
    fields = {name: document[name] for name in _FIELDS if name in document}
    if "layout" in fields and not defined.laid_out:
        raise InputError(f"layout is for matrix products, and {defined.name} is none")
    return UsedShape(defined.at(defined.parse_shape(shape), **fields), target, weight)
