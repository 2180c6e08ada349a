"""What a target is asked to export, and what it gives: files for programs without this package."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.core.dtypes import DTYPES
from autotune.core.paths import data_dir
from autotune.exporting.expected import checked_scalars, expected
from autotune.exporting.exported_call import ExportedCall
from autotune.operations.accuracy import Tolerance
from autotune.operations.problem import multiplies

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autotune.core.configuration import Configuration
    from autotune.core.device import Device
    from autotune.families.family import KernelFamily
    from autotune.families.gpu.launch import Binary
    from autotune.families.rendering import Source
    from autotune.operations.problem import Problem
    from autotune.store import TuningRecord

FORMATS = ("cpp", "python")
"""What kernels are exported for: programs in C++ (of CPU kernels, in C too), or in Python."""

_LONGEST_TEXT = 80


@dataclass(frozen=True, slots=True)
class Program:
    """What a family generates.

    Attributes:
        configuration: of the family, with the family's own values.
        source: the source.
    """

    configuration: Configuration
    source: Source


@dataclass(frozen=True, slots=True)
class Exportable:
    """A record's kernel and all that its files are made from.

    Attributes:
        record: whose kernel.
        family: its family, as it is now.
        problem: what the kernel computes.
        program: what the family generates for it; None where `binary` was made of what it no
            longer generates.
        binary: what the kernel was compiled to, where that is kept; None where it must be
            compiled.
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
        """What the kernel is called in programs: an identifier of C, C++ and Python alike."""
        return re.sub(r"\W+", "_", f"{self.problem.operation}_{self.problem.label}", flags=re.A)

    @property
    def product(self) -> bool:
        """Whether it is ``alpha A B + beta C``, which checks compute themselves."""
        return multiplies(self.problem.defined)

    def names(self) -> dict[str, Any]:
        """What templates of exported files are given, whatever the target."""
        problem, record, defined = self.problem, self.record, self.problem.defined
        tolerance = Tolerance.of(
            self.family.accuracy, problem.dtype, problem.shape, problem.out_dtype
        )
        operand, result = DTYPES[problem.dtype], DTYPES[problem.result_dtype]
        return {
            "name": self.name,
            "entry": problem.operation,
            "summary": plain(defined.summary) or plain(problem.operation),
            "problem": problem,
            "product": self.product,
            "call": ExportedCall.of(problem),
            "checked": checked_scalars(defined),
            "operand": operand,
            "result": result,
            "scalar": operand.accumulated,
            "tolerance": tolerance,
            "median_us": 1e6 * record.median_s,
            "record_id": record.id,
            "family": plain(self.family.name),
            "tuned_on": plain(record.fingerprint.name),
            "created": plain(record.created),
        }

    def common_files(self, names: Mapping[str, Any]) -> dict[str, bytes]:
        """The files that every exported folder has: what the kernel is, and its record.

        What is no product comes with what its check expects.

        Args:
            names: what the page's template is given: `names`, and ``target`` and ``form``.
        """
        document = json.dumps(self.record.to_json(), indent=2) + "\n"
        files = {
            "README.md": expanded("README.md.j2", names),
            "record.json": document.encode(),
        }
        if not self.product:
            files[f"{self.name}.expected"] = expected(self.problem, self.family.accuracy)
        return files


@dataclass(frozen=True, slots=True)
class Exported:
    """A folder's content.

    Attributes:
        name: of the kernel, in programs.
        files: contents by file name.
        notes: what the user should know, in lines.
    """

    name: str
    files: Mapping[str, bytes]
    notes: tuple[str, ...] = ()


def expanded(template: str, names: Mapping[str, Any]) -> bytes:
    """An exported file.

    Args:
        template: its path in the folder of export templates.
        names: what the template is given.
    """
    from autotune.families.templating import expand

    return expand(f"_export/{template}", (data_dir("templates"),), dict(names)).encode()


def plain(text: str) -> str:
    """A record's free text as it may stand in a comment of any language, and in Markdown.

    Records are data of strangers: nothing that ends a comment or a string is left of them.
    """
    kept = re.sub(r"[^A-Za-z0-9 .,:()+_-]", " ", text)
    return re.sub(r"\s+", " ", kept).strip()[:_LONGEST_TEXT]
