"""``autotune check``: verify and time a kernel that somebody else wrote."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from autotune.cli.parser import CommandResult, common
from autotune.cli.terminal import put
from autotune.core.errors import InputError
from autotune.store import strict_json

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

REQUESTS = "-"


def add_check(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "check",
        parents=[common()],
        description="Verifies a kernel against a reference, in processes of its own, and times "
        "it in turns with that. With - it reads requests from stdin, one JSON object a line, and "
        "prints an answer to each (docs/commands.md).",
    )
    parser.add_argument(
        "kernel",
        metavar="KERNEL",
        help="module:function, file.py:function or file.cu; - reads requests",
    )
    parser.add_argument("--reference", metavar="R", help="a formula, or module:function")
    parser.add_argument(
        "--operand",
        action="append",
        default=[],
        metavar="NAME=MxN",
        help="an input, in the order of the reference's arguments; given again for each",
    )
    parser.add_argument("--out", metavar="NAME=MxN", help="the output")
    parser.add_argument("--shape", metavar="64x48", help="the sizes, as the operands name them")
    parser.add_argument("--dtype", metavar="D", help="element type (default: the first it takes)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads it may use")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter of the kernel; may be given again",
    )
    for name in ("grid", "block"):
        parser.add_argument(
            f"--{name}", action="append", metavar="EXPR", help=f"CUDA: the {name} along x, y, z"
        )
    parser.add_argument("--device", metavar="NAME|INDEX", help="which GPU (default: the first)")
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="seconds for it (default 60)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> CommandResult:
    """Check one kernel, or answer requests until stdin ends."""
    from autotune.checking import Checker, Submission

    with Checker(args.device, args.cache) as checker:
        if args.kernel == REQUESTS:
            for line in sys.stdin:
                if line.strip():
                    put(json.dumps(checker.answer(_request(line))))
            return CommandResult(None, "", printed=True)
        answer = checker.check(Submission.of(_described(args))).document
    if not answer["verified"]:
        text = f"{answer['outcome']}: {answer['reason']}"
    else:
        low, high = (1e3 * each for each in answer["interval_s"] or [answer["median_s"]] * 2)
        text = f"verified, {1e3 * answer['median_s']:.4g} ms [{low:.4g}, {high:.4g}]"
        ratio, why = answer["ratio"], answer["reason"]
        text += f", {why}" if ratio is None else f", {ratio:.2f}x {answer['beside']}"
    return CommandResult(answer, text, exit_code=0 if answer["verified"] else 1)


def _request(line: str) -> Any:
    """The value on a line; a text, which is no request, where that is no JSON."""
    try:
        return strict_json.parse(line)
    except InputError as error:
        return str(error)


def _described(args: argparse.Namespace) -> dict[str, Any]:
    """The request that the options make."""
    given = {
        "kernel": args.kernel,
        "reference": args.reference,
        "shape": args.shape,
        "dtype": args.dtype,
        "threads": args.threads,
        "grid": args.grid,
        "block": args.block,
        "timeout": args.timeout,
        "operands": _assigned("--operand", args.operand),
        "out": _assigned("--out", [] if args.out is None else [args.out]),
        "parameters": {name: _value(text) for name, text in _assigned("--set", args.set).items()},
    }
    return {key: value for key, value in given.items() if value is not None}


def _assigned(option: str, texts: Sequence[str]) -> dict[str, str]:
    for text in texts:
        if "=" not in text:
            raise InputError(f"{option} takes NAME=VALUE, got {text!r}")
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def _value(text: str) -> Any:
    """A number or a truth value; else the text."""
    try:
        found = json.loads(text.lower())
    except ValueError:
        return text
    return found if isinstance(found, (bool, int, float)) else text
