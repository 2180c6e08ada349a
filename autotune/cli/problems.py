"""Options that say what to work on, shared by the commands, and the problems they stand for."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from autotune.core.dtypes import DEFAULT_DTYPE, dtype_name
from autotune.core.errors import ProblemError
from autotune.families.offers import dtypes_of, unoffered, unwritten
from autotune.operations.problem import LAYOUTS, Gemm, parse_shape
from autotune.operations.product import Product

if TYPE_CHECKING:
    from autotune.cli.scope import Scope

DEFAULT_SHAPE = "1024x1024x1024"


def problem_options() -> argparse.ArgumentParser:
    """A parent parser with the options that describe problems."""
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group("problem")
    group.add_argument(
        "--shape",
        action="append",
        metavar="MxNxK",
        help="sizes of C[MxK] = A[MxN] B[NxK], N the reduction; may be given again "
        f"(default {DEFAULT_SHAPE})",
    )
    group.add_argument(
        "--dtype",
        metavar="D",
        help=f"element type, of those that the families have (default {DEFAULT_DTYPE})",
    )
    group.add_argument(
        "--out-dtype",
        metavar="D",
        help="element type of the result, of those that the families write (default: the dtype)",
    )
    group.add_argument(
        "--layout",
        metavar="L",
        help=f"which operands are stored transposed: {', '.join(LAYOUTS)} (default nn)",
    )
    group.add_argument(
        "--accuracy",
        metavar="A",
        help="loosest accuracy class allowed, of those that the families have (default ieee, or "
        "the class of the families named)",
    )
    group.add_argument(
        "--threads", type=int, metavar="N", help="cap on CPU threads (default: all there are)"
    )
    return parser


def operation_argument(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the operation as an argument of its own."""
    parser.add_argument(
        "operation",
        nargs="?",
        help=f"what to {verb}: gemm (the default), or an operation that families of your own "
        "define",
    )


def operation_option(parser: argparse.ArgumentParser) -> None:
    """Add the operation as an option, where the arguments are families."""
    parser.add_argument(
        "--operation",
        metavar="NAME",
        help="an operation that families of your own define (default: that of the families "
        "named, else gemm)",
    )


def problems(
    args: argparse.Namespace, scope: Scope, shapes: Sequence[str] = (DEFAULT_SHAPE,)
) -> list[Gemm]:
    """The problems that the options describe, one per shape.

    Args:
        args: parsed options of `problem_options`.
        scope: what they are for; a dtype or an accuracy class that none of its families has is
            refused.
        shapes: shapes to use when none was given.

    Raises:
        ProblemError: an option's value is out of range.
    """
    kind = Gemm if scope.defined is None else partial(Product, defined=scope.defined)
    dtype, accuracy = _offered(args, scope)
    out_dtype = None if args.out_dtype is None else dtype_name(args.out_dtype)
    if out_dtype and (reason := unwritten(scope.families.values(), dtype, out_dtype)):
        raise ProblemError(reason)
    return [
        kind(
            *parse_shape(shape),
            dtype=dtype,
            out_dtype=out_dtype,
            layout=args.layout or "nn",
            accuracy=accuracy,
            threads=args.threads,
        )
        for shape in args.shape or shapes
    ]


def _offered(args: argparse.Namespace, scope: Scope) -> tuple[str, str]:
    """Dtype and accuracy class, of those that there are families for."""
    families = [*scope.families.values()]
    dtypes = dtypes_of(families)
    default = DEFAULT_DTYPE if DEFAULT_DTYPE in dtypes else dtypes[0]
    dtype = default if args.dtype is None else dtype_name(args.dtype)
    if (reason := unoffered(families, dtype, args.accuracy)) is not None:
        raise ProblemError(reason)
    return dtype, args.accuracy or _accuracy_of(scope) or "ieee"


def _accuracy_of(scope: Scope) -> str | None:
    """The accuracy class that lets every family named on the command line take part.

    Naming one family of a looser class is asking for it; two different looser classes cannot
    both be meant, so nothing is assumed then.
    """
    looser = {scope.chosen[name].accuracy for name in scope.named} - {"ieee"}
    return looser.pop() if len(looser) == 1 else None


def shapes_text(problem: Gemm) -> str:
    """The three matrices as stored, for people: ``C[4x6] = A[4x5] @ B[5x6]``."""
    a, b = ("x".join(map(str, shape)) for shape in (problem.a_shape, problem.b_shape))
    a, b = f"A[{a}]", f"B[{b}]"
    if problem.layout[0] == "t":
        a += "^T"
    if problem.layout[1] == "t":
        b += "^T"
    product = f"{a} @ {b}" if problem.formula is None else f"{problem.formula.text} of {a}, {b}"
    types = " to ".join(filter(None, (problem.dtype, problem.out_dtype)))
    return f"C[{problem.m}x{problem.k}] = {product}  {types}"
