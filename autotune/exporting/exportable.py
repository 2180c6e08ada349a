"""A kernel to be exported, the results of its calls, and the folder of files that comes of it.

Operands of checks need no file: they are drawn by a hash of an element's place, which programs in
all languages compute alike. Of the outputs some elements are kept, each with its tolerance.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.core.dtypes import ELEMENTS
from autotune.core.errors import InputError
from autotune.core.paths import data_dir
from autotune.exporting.calls import ExportedCall, drawn_arrays
from autotune.operations.accuracy import Tolerance
from autotune.operations.cases import Case
from autotune.operations.contents import full_references
from autotune.operations.problem import multiplies
from autotune.operations.verification import tolerance_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from autotune.core.configuration import Configuration
    from autotune.core.device import Device
    from autotune.families.family import KernelFamily
    from autotune.families.gpu.launch import Binary
    from autotune.families.rendering import Source
    from autotune.operations.operation import Operation
    from autotune.operations.parts import Array
    from autotune.operations.problem import Problem
    from autotune.operations.references import Matrix
    from autotune.store import TuningRecord

ROW = np.dtype([("place", "<i8"), ("expected", "<f8"), ("allowed", "<f8")])
"""One number of the outputs: its place, counted row by row through all of them, its value and its
tolerance. A complex element is two numbers."""

MOST = 4096
"""Numbers that are kept."""

_SCALARS = (1.5, -0.5, 0.75, 2.0)


def checked_scalars(operation: Operation) -> dict[str, float]:
    """Values of an operation's scalars that checks of exported kernels call it with."""
    whole = dict(operation.integers)
    return {
        name: int(default) if name in whole else _SCALARS[number % len(_SCALARS)]
        for number, (name, default) in enumerate(operation.scalars)
    }


def drawn(number: int, array: Array) -> Matrix:
    """The elements of an operand, of murmur3's finalizer of their places.

    They are in [-1, 1), or whole numbers from 0 to the array's `most`.

    Args:
        number: of the operand, from 0 on: another one has other elements.
        array: its shape and type.
    """
    row = ELEMENTS[array.dtype]
    parts = (*array.shape, 2) if row.kind == "complex" else array.shape
    count = math.prod(parts)
    x = np.arange(count).astype(np.uint32)
    x += np.uint32(number * 0x9E3779B9 & 0xFFFFFFFF)
    x ^= x >> 16
    x *= np.uint32(0x85EBCA6B)
    x ^= x >> 13
    x *= np.uint32(0xC2B2AE35)
    x ^= x >> 16
    values: Any = (x >> 8) / 2.0**23 - 1
    if array.most is not None:
        values = np.floor((x >> 8) / 2.0**24 * (array.most + 1))
        if array.ascending:
            values = np.arange(1, count + 1) * array.most // count
    real = values.astype((row.accumulated if row.kind == "complex" else row).numpy)
    return np.asarray(real.view(row.numpy).reshape(array.shape))


def expected(problem: Problem, accuracy: str) -> bytes:
    """Numbers of the operation's results for operands that are `drawn`, as `ROW`s.

    Those that are not finite are left out.

    Args:
        problem: what is computed.
        accuracy: the accuracy class that the kernel promises.

    Raises:
        ExpressionError: a reference in Python fails.
        InputError: no tolerance is known for the class.
    """
    arrays = enumerate(drawn_arrays(problem))
    operands = {array.name: drawn(number, array) for number, array in arrays}
    values = {**problem.named(operands), **checked_scalars(problem.defined)}
    references = full_references(problem, values)
    outputs = [array for array in problem.operands if array.written]
    parts, before = [], 0
    for output in outputs:
        reference, numbers = (
            references[output.name],
            1 + (ELEMENTS[output.dtype].kind == "complex"),
        )
        tolerance = tolerance_of(Case(*problem.shape), problem, accuracy, output.dtype)
        exact = reference.expected.astype(np.complex128).reshape(-1).view(np.float64)
        exact = exact if numbers == 2 else exact[::2]
        allowed = np.broadcast_to(
            reference.most(tolerance, ELEMENTS[output.dtype].numpy), output.shape
        )
        rows = np.empty(exact.size, ROW)
        rows["place"] = before + np.arange(exact.size)
        rows["expected"], rows["allowed"] = exact, np.repeat(allowed.reshape(-1), numbers)
        parts.append(_some(rows, MOST // len(outputs)))
        before += exact.size
    whole = np.concatenate(parts)
    finite = np.isfinite(whole["expected"]) & np.isfinite(whole["allowed"])
    return bytes(whole[finite].tobytes())


def _some(rows: NDArray[Any], most: int) -> NDArray[Any]:
    """All of them, or one in each of many equal parts, and the last one."""
    count = len(rows)
    if count <= most:
        return rows
    random = np.random.default_rng(count)
    bounds = [count * part // (most - 1) for part in range(most)]
    places = (int(random.integers(*part)) for part in itertools.pairwise(bounds))
    return np.asarray(rows[np.unique([*places, count - 1])])


FORMATS = ("cpp", "python")
"""Languages of the programs: C++ (of CPU kernels, C too), or Python."""

_LONGEST_TEXT = 80


@dataclass(frozen=True, slots=True)
class Program:
    """A configuration, with the family's own values, and the source generated for it."""

    configuration: Configuration
    source: Source


@dataclass(frozen=True, slots=True)
class Exportable:
    """A record's kernel and all that its files are made from.

    Attributes:
        record: whose kernel.
        family: its family, as it is now.
        problem: what the kernel computes.
        program: generated by the family; None where `binary` was made of what it no longer
            generates.
        binary: of the kernel, where it is kept; None where it must be compiled.
        device: describes the device that the record was tuned on; called only where that is
            needed. Raises AutotuneError where it is not known.
    """

    record: TuningRecord
    family: KernelFamily
    problem: Problem
    program: Program | None
    binary: Binary | None
    device: Callable[[], Device]

    @property
    def name(self) -> str:
        """The kernel's name in programs: an identifier of C, C++ and Python alike."""
        return re.sub(r"\W+", "_", f"{self.problem.operation}_{self.problem.label}", flags=re.A)

    @property
    def product(self) -> bool:
        """True of ``alpha A B + beta C``, which checks compute themselves."""
        return multiplies(self.problem.defined)

    def _expected(self) -> tuple[bytes, str]:
        """Numbers for a check, and the reason for having none; empty where there is neither."""
        defined, why = self.problem.defined, ""
        if defined.content is not None:
            why = "a function inputs makes its operands"
        elif defined.accept is not None:
            why = "a function accept judges its results"
        if why or self.product:
            return b"", why
        numbers = expected(self.problem, self.family.accuracy)
        return numbers, "" if numbers else "all its results are infinite or no numbers"

    def names(self) -> dict[str, Any]:
        """Names in templates of exported files, whatever the target.

        ``unchecked`` has the line that says why there is no check, if there is none.
        """
        problem, record, defined = self.problem, self.record, self.problem.defined
        operand, call = ELEMENTS[problem.dtype], ExportedCall.of(problem)
        summary = plain(defined.summary).rstrip(".")
        numbers, why = self._expected()
        said = summary not in ("", plain(call.statement))
        return {
            "name": self.name,
            "entry": problem.operation,
            "summary": summary if said else plain(problem.operation),
            "problem": problem,
            "product": self.product,
            "unchecked": (f"no check of {self.name}, since {why}",) if why else (),
            "expected": numbers,
            "call": call,
            "checked": checked_scalars(defined),
            "operand": operand,
            "result": ELEMENTS[problem.result_dtype],
            "scalar": operand.accumulated,
            "tolerance": Tolerance.of(
                self.family.accuracy,
                problem.dtype,
                problem.product_sizes,
                problem.out_dtype,
            ),
            "median_us": 1e6 * record.median_s,
            "record_id": record.id,
            "family": plain(self.family.name),
            "tuned_on": plain(record.fingerprint.name),
            "created": plain(record.created),
        }

    def common_files(self, names: Mapping[str, Any]) -> dict[str, bytes]:
        """The files that every exported folder has, with what its check expects, if it has one.

        Args:
            names: in the page's template: `names`, and ``target`` and ``form``.
        """
        document = json.dumps(self.record.to_json(), indent=2) + "\n"
        files = {
            "README.md": expanded("README.md.j2", names),
            "record.json": document.encode(),
        }
        if names["expected"]:
            files[f"{self.name}.expected"] = names["expected"]
        return files


@dataclass(frozen=True, slots=True)
class Exported:
    """The content of a folder: contents by file name, and lines that the user should read.

    `name` is the kernel's in programs.
    """

    name: str
    files: Mapping[str, bytes]
    notes: tuple[str, ...] = ()


def expanded(template: str, names: Mapping[str, Any]) -> bytes:
    """An exported file, from its template's path in the folder of export templates."""
    from autotune.families.templating import expand

    return expand(f"_export/{template}", (data_dir("templates"),), dict(names)).encode()


def plain(text: str) -> str:
    """A record's free text as it may stand in a comment of any language, and in Markdown.

    Records are data of strangers: nothing that ends a comment or a string is left of them.
    """
    kept = re.sub(r"[^A-Za-z0-9 .,:()+_-]", " ", text)
    return re.sub(r"\s+", " ", kept).strip()[:_LONGEST_TEXT]


def check_folder(folder: Path) -> None:
    """Check that a folder may be written: it is not there, or is empty.

    Raises:
        InputError: it may not; the message says why.
    """
    try:
        if folder.is_dir():
            if any(folder.iterdir()):
                raise InputError(f"{folder} must be a new or an empty folder, and has files in it")
            if folder.samefile(Path.cwd()):
                raise InputError(
                    f"{folder} is the current folder, which cannot be replaced: name another one"
                )
        elif folder.exists() or folder.is_symlink():
            raise InputError(f"{folder} must be a new or an empty folder, and is something else")
    except OSError as error:
        raise InputError(f"{folder} must be a folder to write to: {error.strerror}") from error


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a new or empty folder, all at once; missing parents are made.

    Raises:
        InputError: the folder may not be written; nothing is left.
    """
    check_folder(folder)
    folder = folder.absolute()
    draft = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft.mkdir()
        try:
            for name, content in files.items():
                (draft / name).write_bytes(content)
            draft.replace(folder)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from error
