"""``autotune tune``: search, verify, and store the winner."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cli.outputs import attempted
from autotune.cli.parser import CommandResult, common, rare
from autotune.cli.presets import run_named
from autotune.cli.problems import operation_argument, problem_options
from autotune.cli.runs import check_run, family_option, problems_of, run_each, run_options
from autotune.cli.scope import target_options
from autotune.cli.tuned import document, summary, winner
from autotune.core.errors import InputError
from autotune.store import export_records

if TYPE_CHECKING:
    from autotune.tuning.tuner import TuneResult

DEFAULT_TRIALS = 200
DEFAULT_TIMEOUT_S = 60.0


def add_tune(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "tune",
        parents=[common(), problem_options(), target_options()],
        description="Searches the families' spaces for the fastest kernel of each problem, "
        "verifies it, compares it with the vendor library and stores it in the cache.",
    )
    operation_argument(parser, "tune")
    search = parser.add_argument_group("search")
    family_option(search, "search")
    search.add_argument("--trials", type=int, metavar="N", help="for each problem (default 200)")
    search.add_argument(
        "--timeout",
        type=float,
        metavar="S",
        help="seconds for each problem, all in (default 60); with --preset or --shapes, for all "
        "together",
    )
    search.add_argument(
        "--until",
        type=float,
        metavar="P",
        help="also end once a gain of more than 1%% is less probable than P, like 0.05",
    )
    search.add_argument(
        "--sampler",
        default="auto",
        metavar="NAME",
        help="auto, tpe, gp, cmaes, nsga2, random, exhaustive or a dotted path (default auto)",
    )
    search.add_argument(
        "--objective",
        metavar="NAME",
        help="what kernels are compared by: time, throughput, energy, energy-delay or error "
        "(default time)",
    )
    search.add_argument(
        "--rank",
        choices=("cool", "sustained"),
        help="which times of a GPU's finals decide: of short turns (cool), or without a pause at "
        "steady clocks (default cool; with --preset or --shapes sustained)",
    )
    rare(
        search.add_argument(
            "--devices",
            metavar="0-7",
            help="GPUs that are alike, as 0-3 or 0,2: a process each makes trials of one study",
        )
    )
    search.add_argument("--seed", type=int, default=0, metavar="N", help="default 0")
    search.add_argument("--study", metavar="NAME", help="name of the study; an old one goes on")
    run_options(search)
    search.add_argument(
        "--preset",
        metavar="NAME",
        help="tune the preset's problems in one resumable run: gpu (within 8 minutes) or cpu",
    )
    rare(
        search.add_argument(
            "--dtypes",
            metavar="D,...",
            help="element types that the preset's shapes are tuned for, 4 minutes each: "
            "float32,bfloat16 (default: the preset's own)",
        )
    )
    search.add_argument(
        "--shapes",
        type=Path,
        metavar="FILE",
        help="tune a program's own list of shapes, as AUTOTUNE_RECORD=FILE writes it, in one "
        "resumable run (within 8 minutes, or --timeout)",
    )
    search.add_argument(
        "--export", type=Path, metavar="FILE", help="also write the winners' records to a file"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> CommandResult:
    """Tune every problem asked for."""
    check_run(args)
    devices = [] if args.devices is None else _numbers(args.devices)
    if devices:
        for option in ("device", "preset", "shapes"):
            if (value := getattr(args, option)) is not None:
                raise InputError(f"--devices is for the GPUs of one study, got --{option} {value}")
        args.device = str(devices[0])
    if args.preset is not None or args.shapes is not None:
        if args.until is not None:
            raise InputError(
                f"--until ends one problem's search, got --until {args.until} with --preset or "
                "--shapes: leave it out"
            )
        return run_named(args)
    if args.dtypes is not None:
        raise InputError(f"--dtypes is for presets, got --dtypes {args.dtypes}: use --dtype")
    scope, todo = problems_of(args)
    if args.study is not None and len(todo) > 1:
        raise InputError(f"--study {args.study!r} names one study, got {len(todo)} shapes")
    from autotune.tuning.tuner import tune

    trials = DEFAULT_TRIALS if args.trials is None else args.trials
    timeout = DEFAULT_TIMEOUT_S if args.timeout is None else args.timeout
    results: list[TuneResult] = run_each(
        args,
        scope.target,
        todo,
        tune,
        doing="tuning",
        ends=f": up to {trials} trials or {timeout:g} s",
        outputs={"the export": args.export},
        shared=lambda result: winner(result.best),
        trials=trials,
        timeout=timeout,
        until=args.until,
        sampler=args.sampler,
        objective=args.objective,
        devices=devices,
        rank=args.rank or "cool",
    )
    best = [result.best for result in results]
    return CommandResult(
        document=[document(result) for result in results],
        text="\n\n".join(summary(result) for result in results),
        failure=attempted(args.export, lambda path: export_records(best, path)),
    )


def _numbers(text: str) -> list[int]:
    """Numbers of devices in ascending order, from ranges like "0-3,6"."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.strip().isdecimal() or (dash and not last.strip().isdecimal()):
            raise InputError(f"--devices takes numbers, as 0-3 or 0,2, got {text!r}")
        found.update(range(int(first), int(last if dash else first) + 1))
    return sorted(found)
