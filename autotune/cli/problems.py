"""Options that say what to work on, shared by the commands, and the problems they stand for."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from autotune.problem import ACCURACIES, LAYOUTS, Gemm, parse_shape
from autotune.product import Product

if TYPE_CHECKING:
    from autotune.family import KernelFamily
    from autotune.product import Operation

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
    group.add_argument("--dtype", metavar="D", help="float32 or float64 (default float32)")
    group.add_argument(
        "--layout",
        metavar="L",
        help=f"which operands are stored transposed: {', '.join(LAYOUTS)} (default nn)",
    )
    group.add_argument(
        "--accuracy",
        metavar="A",
        help=f"loosest accuracy class allowed: {', '.join(ACCURACIES)} (default ieee, or the "
        "class of the families named)",
    )
    group.add_argument(
        "--threads", type=int, metavar="N", help="cap on CPU threads (default: all there are)"
    )
    return parser


def problems(
    args: argparse.Namespace,
    accuracy: str | None = None,
    shapes: Sequence[str] = (DEFAULT_SHAPE,),
    operation: Operation | None = None,
) -> list[Gemm]:
    """The problems that the options describe, one per shape.

    Args:
        args: parsed options of `problem_options`.
        accuracy: class to use when none was given.
        shapes: shapes to use when none was given.
        operation: what to compute, where that is an operation of the user's own.

    Raises:
        ProblemError: an option's value is out of range.
    """
    kind = Gemm if operation is None else partial(Product, defined=operation)
    return [
        kind(
            *parse_shape(shape),
            dtype=args.dtype or "float32",
            layout=args.layout or "nn",
            accuracy=args.accuracy or accuracy or "ieee",
            threads=args.threads,
        )
        for shape in args.shape or shapes
    ]


def accuracy_of(families: Mapping[str, KernelFamily], named: list[str]) -> str | None:
    """The accuracy class that lets every family named on the command line take part.

    Naming one family of a looser class is asking for it; two different looser classes cannot
    both be meant, so nothing is assumed then.
    """
    looser = {families[name].accuracy for name in named if name in families} - {"ieee"}
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
    return f"C[{problem.m}x{problem.k}] = {product}  {problem.dtype}"
