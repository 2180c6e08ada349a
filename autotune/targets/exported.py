"""From a record to the kernel that is exported."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from autotune.core.errors import UnknownNameError
from autotune.exporting.exportable import Exportable, Program
from autotune.families.gpu.launch import Binary, kernel_layout
from autotune.families.rendering import render
from autotune.store import record_sources
from autotune.targets.families import load_families
from autotune.targets.registry import target_class

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autotune.core.device import Device
    from autotune.families.family import KernelFamily
    from autotune.operations.problem import Problem
    from autotune.store import TuningRecord


def family_of(record: TuningRecord, extra: Sequence[Path] = ()) -> KernelFamily:
    """The family of a record's winner, as its files are now; `extra` are the user's folders.

    Raises:
        UnknownNameError: it is not here.
        FamilyError: a family of those folders cannot be read.
    """
    name = record.candidate.family
    families = load_families(target=record.target, operation=record.operation, extra=extra)
    if name not in families:
        raise UnknownNameError(
            f"record {record.id} is of family {name!r} for {record.operation} on "
            f"{record.target}, which is not here: --families names its folder"
        )
    return families[name]


def device_of(record: TuningRecord, problem: Problem, name: int | str | None = None) -> Device:
    """The device that a record of a problem was tuned on, or the one named.

    Raises:
        AutotuneError: it is not known here.
    """
    target = target_class(record.target)
    placement = target.placement(record.fingerprint)
    return target.of(placement.options).device(problem, name or placement.device)


def exportable(record: TuningRecord, database: Path, extra: Sequence[Path] = ()) -> Exportable:
    """All that the files of a record's kernel are made from.

    Args:
        record: whose kernel.
        database: the user's cache, which may hold its binary.
        extra: folders of families of the user's own.

    Raises:
        UnknownNameError: its family is not here.
        SpaceError: its configuration is none of the family's, and its binary is not kept.
        CacheError: the cache cannot be read.
    """
    family = family_of(record, extra)
    problem = family.defined.problem_from_key(record.problem)
    binary = _binary(record, database)
    # The files of a folder belong together: of what a binary was made of, or not at all.
    current = family.digest == record.family_digest or binary is None
    program = _program(record, family, problem) if current else None
    device = functools.partial(device_of, record, problem)
    return Exportable(record, family, problem, program, binary, device)


def _program(record: TuningRecord, family: KernelFamily, problem: Problem) -> Program:
    """The source that the family generates now for a record's configuration."""
    configuration = family.conform(record.candidate.configuration)
    source = render(
        family,
        configuration,
        dtype=problem.dtype,
        layout=kernel_layout(family, problem.layout),
        out_dtype=problem.out_dtype,
    )
    return Program(configuration, source)


def _binary(record: TuningRecord, database: Path) -> Binary | None:
    """The binary that a record was measured with, where it is kept."""
    if record.binary is None or record.binary.support is not None:
        return None
    for source in record_sources(database, record.fingerprint.kind):
        content = source.binary(record.binary.digest)
        if content is not None:
            return Binary(content, record.binary.architecture, record.binary.launch)
    return None
