"""``autotune sweep``: measure every valid configuration."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.cli.environment import check_threads
from autotune.cli.options import CommandResult, common, run_options
from autotune.cli.outputs import attempted, check_outputs
from autotune.cli.problems import operation_argument, problem_options, problems, shapes_text
from autotune.cli.scope import Scope
from autotune.cli.targets import joined_target, target_options
from autotune.core import arguments
from autotune.core.errors import InputError
from autotune.core.writing import deliver

if TYPE_CHECKING:
    from autotune.operations.problem import Problem
    from autotune.research.sweeper import SweepResult
    from autotune.serving.target import Target


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "sweep",
        parents=[common(), problem_options(), target_options()],
        description="Measures every valid configuration of the families for each problem, in "
        "random order. An interrupted sweep goes on where it was when it is started again. What "
        "it wrote can be replayed: autotune replay FILE.",
    )
    operation_argument(parser, "sweep")
    parser.add_argument(
        "--family",
        action="append",
        default=[],
        metavar="F",
        help="sweep only this family; may be given again (default: all)",
    )
    parser.add_argument(
        "--limit", type=int, metavar="N", help="measure a random N of them (default: all)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="draws the order (default 0)"
    )
    parser.add_argument(
        "--racing",
        action="store_true",
        help="abandon what is far behind the best (default: time everything to the end)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="write the measurements to a file: CSV if it ends in .csv, otherwise JSON",
    )
    parser.add_argument("--study", metavar="NAME", help="name of the study behind the sweep")
    run_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> CommandResult:
    """Sweep every problem asked for."""
    arguments.workers(args.workers)
    check_threads()
    scope = Scope.of(args, args.family)
    todo = problems(args, scope)
    for option in ("study", "output"):
        if getattr(args, option) is not None and len(todo) > 1:
            raise InputError(f"--{option} is for one shape, got {len(todo)}")
    results: list[SweepResult] = []
    with joined_target(scope.target, args) as joined:
        check_outputs({"the measurements": args.output}, args)
        for problem in todo:
            results.append(_sweep(args, problem, joined.target))
            if results[-1].interrupted:
                break
        joined.results.extend({"study": result.study} for result in results)
    return CommandResult(
        document=[document(result) for result in results],
        text="\n\n".join(summary(result) for result in results),
        exit_code=0 if all(result.measured for result in results) else 1,
        failure=attempted(args.output, lambda path: _write(path, results[0])),
    )


def _sweep(args: argparse.Namespace, problem: Problem, target: Target) -> SweepResult:
    from autotune.research.sweeper import sweep
    from autotune.tuning.progress import ProgressLine

    line = ProgressLine(f"sweeping {shapes_text(problem)} on target {target.name}")
    try:
        return sweep(
            problem,
            target=target,
            device=args.device,
            families=args.family,
            extra_families=args.families,
            limit=args.limit,
            seed=args.seed,
            cache=args.cache,
            storage=args.storage,
            study=args.study,
            workers=args.workers,
            racing=args.racing,
            progress=None if args.quiet else line,
        )
    finally:
        line.end()


def document(result: SweepResult) -> dict[str, Any]:
    """The JSON document of one swept problem."""
    from autotune.research import sweeps

    return {
        "operation": result.problem.operation,
        "problem": result.problem.key(),
        "target": result.target,
        "device": result.device,
        "study": result.study,
        "seed": result.seed,
        "size": result.size,
        "wanted": result.wanted,
        "complete": result.complete,
        "counts": {str(outcome): n for outcome, n in result.counts.items()},
        "seconds": round(result.seconds, 3),
        "measurements": [
            sweeps.document(each.candidate, each.measurement) for each in result.measured
        ],
    }


def summary(result: SweepResult) -> str:
    """Count of what was measured, and the fastest."""
    counts = ", ".join(f"{n} {outcome}" for outcome, n in sorted(result.counts.items()))
    lines = [
        f"{shapes_text(result.problem, blas=True)} on {result.device}",
        f"sweep     {len(result.measured):,} of {result.wanted:,} configurations measured "
        f"({counts or 'none'}), {result.size:,} are valid; {result.seconds:.1f} s in this run",
    ]
    timed = [
        (each.measurement.median_s, str(each.candidate))
        for each in result.measured
        if each.measurement.ok and each.measurement.median_s
    ]
    if timed:
        median_s, best = min(timed)
        lines.append(
            f"fastest   {best}\n          {median_s * 1e3:.4g} ms, "
            f"{result.problem.flops / median_s / 1e9:.1f} GFLOP/s"
        )
    if not result.complete:
        lines.append("go on     with the same command")
    lines.append(f"replay    {shlex.join(['autotune', 'replay', '--study', result.study])}")
    return "\n".join(lines)


def _write(path: Path, result: SweepResult) -> None:
    from autotune.research import sweeps

    if path.suffix.lower() == ".csv":
        text = sweeps.write_csv((each.candidate, each.measurement) for each in result.measured)
    else:
        text = json.dumps(document(result), indent=1) + "\n"
    deliver(path, text.encode())
