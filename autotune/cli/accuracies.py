"""``autotune bench --accuracy all``: speed beside error, of every accuracy class there is."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.cli import bench
from autotune.cli.bench import Note, Row, measure
from autotune.cli.parser import CommandResult
from autotune.cli.problems import problems, shapes_text
from autotune.cli.runs import check_threads
from autotune.cli.scope import Scope, placed_target
from autotune.cli.terminal import table
from autotune.core import arguments
from autotune.core.configuration import Candidate
from autotune.core.dtypes import DTYPES
from autotune.core.errors import InputError, SpaceError
from autotune.core.interrupt import asked_to_stop
from autotune.core.paths import CacheLocations
from autotune.families.offers import accuracies_of, default_family, refusal
from autotune.families.program_cache import ProgramCache
from autotune.operations.accuracy import unfit
from autotune.operations.problem import Gemm

if TYPE_CHECKING:
    from autotune.core.device import Device
    from autotune.families.family import KernelFamily
    from autotune.serving.target import Target

ALL = "all"
"""The value of ``--accuracy`` that stands for every class."""


def add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``bench`` with all that it measures."""
    parser = bench.add_bench(commands)
    parser.set_defaults(run=lambda args: (run if args.accuracy == ALL else bench.run)(args))


def run(args: argparse.Namespace) -> CommandResult:
    """Measure the best known kernel of each class, beside the library in the modes that it has.

    Args:
        args: parsed options of ``bench``.

    Raises:
        InputError: no family serves the problem, or the device is not here.
    """
    if args.ladder:
        raise InputError(f"--accuracy {ALL} has a kernel of each class: leave --ladder out")
    arguments.seed(args.seed)
    check_threads()
    note = bench.note_of(args)
    args = argparse.Namespace(**{**vars(args), "accuracy": None})
    scope = Scope.of(args, args.family)
    rows: list[Row] = []
    texts = []
    for problem in problems(args, scope):
        if not isinstance(problem, Gemm):
            raise InputError(f"--accuracy {ALL} is for matrix products, got {problem.operation!r}")
        if (reason := refusal(scope.chosen, problem)) is not None:
            raise InputError(reason)
        measured = _of_all(args, problem, scope, note)
        rows += measured
        texts.append(f"{shapes_text(problem, blas=True)}\n{_text(measured)}")
        if asked_to_stop():
            break
    return CommandResult([row.document() for row in rows], "\n\n".join(texts))


def _of_all(args: argparse.Namespace, problem: Gemm, scope: Scope, note: Note) -> list[Row]:
    """A row for the best kernel of each class; the library's first, each mode once."""
    from autotune.serving.target import Work

    target = placed_target(scope.target, args)
    device = target.device(problem, args.device)
    device.check_here()
    usual = DTYPES[problem.dtype].accuracy
    libraries: dict[str, Row] = {}
    kernels: list[Row] = []
    offered = accuracies_of(scope.chosen.values())
    classes = [each for each in offered if unfit(each, problem.dtype) is None]
    for accuracy in sorted(classes, key=lambda each: each != usual):  # the usual one first
        asked = replace(problem, accuracy=accuracy)
        families = {
            name: family
            for name, family in scope.chosen.items()
            if family.accuracy == accuracy and family.unsupported(asked) is None
        }
        best = _best(args, asked, target, device, families)
        if best is None or asked_to_stop():
            continue
        programs = ProgramCache.of(CacheLocations.at(args.cache))
        work = Work(asked, families, device, programs, None, seed=args.seed)
        with target.evaluator(work) as evaluator:
            for row in measure(evaluator, asked, [(best.family, best)], note):
                if row.error is None and row.kernel != best.family:
                    libraries.setdefault(row.kernel, row)
                else:
                    kernels.append(row)
    return [*libraries.values(), *kernels]


def _best(
    args: argparse.Namespace,
    problem: Gemm,
    target: Target,
    device: Device,
    families: Mapping[str, KernelFamily],
) -> Candidate | None:
    """The kernel of a class that `load` would take, or its default; None where there is none."""
    from autotune.serving.lookup import look_up

    found = look_up(
        problem,
        target,
        match="nearest",
        device=args.device,
        cache=args.cache,
        extra_families=args.families,
    ).candidate
    if found.family in families:
        return found
    default = default_family(families, problem, device.limits)
    for name in dict.fromkeys([*([default] if default else []), *families]):
        try:
            return Candidate(name, families[name].default(problem, device.limits))
        except SpaceError:
            continue  # it is for other devices
    return None


def _text(rows: Sequence[Row]) -> str:
    yardstick = next((row for row in rows if row.error is None), None)
    vendor = "library" if yardstick is None else yardstick.kernel.split()[0]
    cells = [
        (
            "" if row.error is None else row.problem.key()["accuracy"],
            row.kernel,
            "-" if row.median_s is None else f"{row.median_s * 1e3:.4g}",
            "-" if row.gflops is None else f"{row.gflops:.1f}",
            _times(row, yardstick),
            "-" if row.error_norm is None else f"{row.error_norm:.2g}",
            "-" if row.error is None else f"{row.error:.3f}",
            row.reason,
        )
        for row in rows
    ]
    header = ("class", "kernel", "median ms", "GFLOP/s", f"x {vendor}", "error", "error/limit", "")
    return (
        f"{table(header, cells, right=header[2:7])}\n"
        "error: norm of the errors, relative to that of the result"
    )


def _times(row: Row, yardstick: Row | None) -> str:
    """Speed relative to the library in its usual mode."""
    if yardstick is None or yardstick.median_s is None or row.median_s is None:
        return "-"
    return f"{yardstick.median_s / row.median_s:.2f}"
