"""``autotune bench``: tuned kernels beside the vendor library, measured interleaved."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.cli.environment import check_threads
from autotune.cli.options import common
from autotune.cli.problems import (
    DEFAULT_SHAPE,
    operation_argument,
    problem_options,
    problems,
    shapes_text,
)
from autotune.cli.result import CommandResult
from autotune.cli.scope import Scope
from autotune.cli.style import ratio
from autotune.cli.table import table
from autotune.cli.targets import placed_target, target_options
from autotune.core import arguments
from autotune.core.errors import InputError, NotTunedError
from autotune.core.interrupt import asked_to_stop
from autotune.families.offers import refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.cli.ladder import Contestant, Row
    from autotune.core.device import Device
    from autotune.families.family import KernelFamily
    from autotune.operations.problem import Problem
    from autotune.serving.target import Target

LADDER_SHAPES = ("1024x1024x1024", "2048x2048x2048", "4096x4096x4096")
"""Shapes of a GPU's ladder, unless others are given."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "bench",
        parents=[common(), problem_options(), target_options()],
        description="Measures the tuned kernel of each problem beside the vendor library, "
        "interleaved in one run; with --ladder every family's presets and default as well, and "
        "on a GPU also the whole call from host arrays to host result.",
    )
    operation_argument(parser, "measure")
    parser.add_argument(
        "--ladder",
        action="store_true",
        help="measure every family's presets and default configuration too (on a GPU at "
        f"{', '.join(LADDER_SHAPES)} unless --shape says otherwise)",
    )
    parser.add_argument(
        "--family",
        action="append",
        default=[],
        metavar="F",
        help="measure only this family; may be given again (default: all)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seeds the operands")
    parser.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class _Job:
    """What is measured for one problem."""

    problem: Problem
    target: Target
    device: Device
    families: Mapping[str, KernelFamily]
    contestants: Sequence[Contestant]


def run(args: argparse.Namespace) -> CommandResult:
    """Check that every problem can be measured, then measure them."""
    from autotune.targets.registry import language_of

    arguments.seed(args.seed)
    check_threads()
    scope = Scope.of(args, args.family)
    is_gpu_ladder = args.ladder and language_of(scope.target).launched
    shapes = LADDER_SHAPES if is_gpu_ladder else (DEFAULT_SHAPE,)
    jobs = [_job(args, problem, scope) for problem in problems(args, scope, shapes)]
    rows: list[Row] = []
    texts = []
    for job in jobs:
        measured = _bench(args, job)
        rows.extend(measured)
        texts.append(f"{shapes_text(job.problem, blas=True)}\n{_text(measured)}")
        if asked_to_stop():
            break
    return CommandResult([row.document() for row in rows], "\n\n".join(texts))


def _job(args: argparse.Namespace, problem: Problem, scope: Scope) -> _Job:
    """What is to be measured; nothing is compiled or run to find out.

    Raises:
        InputError: no family serves the problem, or the device is not here.
        NotTunedError: there is nothing to measure.
    """
    from autotune.cli import ladder

    if (reason := refusal(scope.chosen, problem)) is not None:
        raise InputError(reason)
    target = placed_target(scope.target, args)
    device = target.device(problem, args.device)
    device.check_here()
    families = {
        name: family
        for name, family in scope.chosen.items()
        if family.unsupported(problem) is None
    }
    contestants = _tuned(args, problem, target, families)
    if args.ladder:
        contestants += ladder.rungs(families, problem, device.limits)
    return _Job(problem, target, device, families, contestants)


def _bench(args: argparse.Namespace, job: _Job) -> list[Row]:
    from autotune.cli import ladder
    from autotune.core.paths import CacheLocations
    from autotune.families.program_cache import ProgramCache
    from autotune.serving.target import Work

    programs = ProgramCache.of(CacheLocations.at(args.cache))
    note: ladder.Note = (lambda line: None) if args.quiet else ladder.to_stderr
    effort = ladder.EFFORT if args.ladder else None
    with job.target.evaluator(
        Work(job.problem, job.families, job.device, programs, effort, seed=args.seed)
    ) as evaluator:
        rows = ladder.measure(evaluator, job.problem, job.contestants, note)
    if args.ladder and not asked_to_stop():
        calls = job.target.estimates.host_calls(job.problem, job.device, programs)
        if calls is not None:
            rows = ladder.measure_host_calls(rows, job.contestants, job.families, calls, note)
    return rows


def _tuned(
    args: argparse.Namespace,
    problem: Problem,
    target: Target,
    families: Mapping[str, KernelFamily],
) -> list[Contestant]:
    """The tuned kernel, where there is one of these families."""
    from autotune.serving.lookup import look_up

    try:
        candidate = look_up(
            problem,
            target,
            match="stale",
            device=args.device,
            cache=args.cache,
            extra_families=args.families,
        ).candidate
    except NotTunedError as error:
        if not args.ladder:
            raise NotTunedError(f"{error}; or pass --ladder for the families' presets") from None
        return []
    if candidate.family not in families and not args.ladder:
        raise NotTunedError(
            f"the tuned kernel for {problem.label} is of family {candidate.family}, not of "
            f"{', '.join(families)}: leave --family out"
        )
    name = f"tuned ({candidate.family})"
    return [(name, candidate)] if candidate.family in families else []


def _text(rows: Sequence[Row]) -> str:
    cells = [
        (
            row.kernel,
            "-" if row.median_s is None else f"{row.median_s * 1e3:.4g}",
            "-" if row.gflops is None else f"{row.gflops:.1f}",
            "-"
            if row.ratio_to_vendor is None
            else ratio(f"{100 * row.ratio_to_vendor:.1f}", row.ratio_to_vendor),
            "-" if row.error is None else f"{row.error:.3f}",
            row.reason,
        )
        for row in rows
    ]
    vendor = rows[0].kernel.split()[0] if rows and rows[0].error is None else "vendor"
    header = ("kernel", "median ms", "GFLOP/s", f"% of {vendor}", "error/limit", "")
    text = table(header, cells, right=header[1:5])
    host = [
        (row.kernel, f"{row.host.cold_s * 1e3:.4g}", f"{row.host.warm_s * 1e3:.4g}")
        for row in rows
        if row.host is not None
    ]
    if not host:
        return text
    contexts = sorted(row.host.context_s for row in rows if row.host is not None)
    host_header = ("from host arrays to host result", "first call ms", "later calls ms")
    return (
        f"{text}\n\n{table(host_header, host, right=host_header[1:])}\n"
        f"A first call is that of a fresh process, with the module still to be loaded; making "
        f"the process's context took {contexts[len(contexts) // 2] * 1e3:.0f} ms before it."
    )
