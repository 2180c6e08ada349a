"""Options that say what to work on, shared by the commands, and the problems they stand for."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from autotune.cli.parser import rare, within
from autotune.core.dtypes import DEFAULT_DTYPE, DTYPES, ELEMENTS, dtype_name
from autotune.core.errors import InputError, ProblemError
from autotune.core.printable import shown
from autotune.families.offers import dtypes_of, unoffered, unwritten
from autotune.operations.problem import (
    ACCURACIES,
    LAYOUTS,
    Gemm,
    MatrixOperation,
    Problem,
    multiplies,
)

if TYPE_CHECKING:
    from autotune.cli.scope import Scope

DEFAULT_SHAPE = "1024x1024x1024"


def problem_options() -> argparse.ArgumentParser:
    """A parent parser with the options that describe problems."""
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group("problem")
    shapes = group.add_mutually_exclusive_group()
    shape = shapes.add_argument(
        "--shape",
        action="append",
        metavar="MxNxK",
        help="sizes in the operation's order; gemm's are those of C[MxK] = A[MxN] B[NxK], N the "
        f"reduction (default {DEFAULT_SHAPE}); may be given again",
    )
    blas = shapes.add_argument(
        "--blas",
        action="append",
        type=_of_blas,
        metavar="m,n,k",
        help="the same as BLAS has them: C is m x n, and k is the reduction; may be given again",
    )
    for each in (shape, blas):
        within(each, "problem")
    group.add_argument(
        "--dtype",
        metavar="D",
        help=f"element type, of those that the families have: {', '.join(DTYPES)} (default "
        f"{DEFAULT_DTYPE}, or the first that the families named have)",
    )
    rare(
        group.add_argument(
            "--out-dtype",
            metavar="D",
            help="element type of the result, of those that the families write (default: the "
            "dtype)",
        )
    )
    group.add_argument(
        "--layout",
        metavar="L",
        help=f"which operands are stored transposed: {', '.join(LAYOUTS)} (default nn)",
    )
    group.add_argument(
        "--accuracy",
        metavar="A",
        help=f"loosest accuracy class allowed: {', '.join(ACCURACIES)} (default native for "
        "16-bit types, else ieee; or the class of the families named)",
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
        help=f"what to {verb}: gemm (the default), a layer (layer_bias_gelu), or an operation "
        "that families of your own define",
    )


def operation_option(parser: argparse.ArgumentParser) -> None:
    """Add the operation as an option, where the arguments are families."""
    parser.add_argument(
        "--operation",
        metavar="NAME",
        help="a layer (layer_bias_gelu), or an operation that families of your own define "
        "(default: that of the families named, else gemm)",
    )


def problems(
    args: argparse.Namespace,
    scope: Scope,
    shapes: Sequence[str] = (DEFAULT_SHAPE,),
    *,
    any_shape: bool = False,
) -> list[Problem]:
    """The problems that the options describe, one per shape.

    Args:
        args: parsed options of `problem_options`.
        scope: what they are for; a dtype or an accuracy class that none of its families has is
            refused.
        shapes: shapes to use when none was given.
        any_shape: whether sizes of 512 will do for other operations than products.

    Raises:
        ProblemError: an option's value is out of range.
    """
    defined = scope.defined
    dtype, accuracy = _offered(args, scope)
    if args.blas and not isinstance(defined, MatrixOperation):
        raise InputError(
            f"--blas is for matrix products, got operation {defined.name!r}: give its sizes as "
            f"--shape {defined.shape_text}"
        )
    if not args.shape and not isinstance(defined, MatrixOperation):
        shapes = ("x".join("512" for _ in defined.sizes),)
        if not any_shape:
            raise InputError(
                f"operation {defined.name!r} needs --shape {defined.shape_text}, its sizes as in "
                f"{shapes[0]}"
            )
    out_dtype = None if args.out_dtype is None else dtype_name(args.out_dtype)
    if out_dtype and (reason := unwritten(scope.families.values(), dtype, out_dtype)):
        raise ProblemError(reason)
    fields = {
        "dtype": dtype,
        "out_dtype": out_dtype,
        "accuracy": accuracy,
        "threads": args.threads,
    }
    if defined.laid_out:
        fields["layout"] = "nn" if args.layout is None else args.layout
    elif args.layout is not None:
        raise InputError(
            f"--layout is for matrix products, got {args.layout!r} with operation "
            f"{defined.name!r}: leave it out"
        )
    wanted = args.shape or args.blas or shapes
    return [defined.at(defined.parse_shape(shape), **fields) for shape in wanted]


def _of_blas(text: str) -> str:
    """A shape from what BLAS calls it."""
    sizes = [size.strip() for size in text.split(",")]
    if len(sizes) != 3 or not all(re.fullmatch("0*[1-9][0-9]*", size) for size in sizes):
        raise argparse.ArgumentTypeError(
            "must be three sizes, m,n,k, whole numbers >= 1, of which k is the reduction, got "
            f"{shown(text)}"
        )
    m, n, k = sizes
    return f"{m}x{k}x{n}"


def _offered(args: argparse.Namespace, scope: Scope) -> tuple[str, str]:
    """Dtype and accuracy class, of those that there are families for."""
    families = [*scope.families.values()]
    dtypes = dtypes_of(scope.chosen.values())
    default = DEFAULT_DTYPE if DEFAULT_DTYPE in dtypes else dtypes[0]
    dtype = default if args.dtype is None else dtype_name(args.dtype)
    if (reason := unoffered(families, dtype, args.accuracy)) is not None:
        raise ProblemError(reason)
    return dtype, args.accuracy or _accuracy_of(scope) or ELEMENTS[dtype].accuracy


def _accuracy_of(scope: Scope) -> str | None:
    """The accuracy class that lets every family named on the command line take part.

    Naming one family of a looser class is asking for it; two different looser classes cannot
    both be meant, so nothing is assumed then.
    """
    looser = {scope.chosen[name].accuracy for name in scope.named} - {"ieee"}
    return looser.pop() if len(looser) == 1 else None


def shapes_text(problem: Problem, *, blas: bool = False) -> str:
    """The operands as stored, for people: ``C[4x6] = A[4x5] @ B[5x6]  float32``.

    Args:
        problem: what is computed.
        blas: whether to say what BLAS calls the sizes of a matrix product, too.
    """
    stored = {
        each.name: f"{each.name}[{'x'.join(map(str, each.shape))}]" for each in problem.operands
    }
    output = stored.pop(problem.defined.output.name)
    for name, how in zip("AB", problem.layout, strict=True):
        if how == "t":
            stored[name] += "^T"
    result = " @ ".join(stored.values())
    if not multiplies(problem.defined):
        result = f"{problem.defined.result.text} of {', '.join(stored.values())}"
    types = " to ".join(filter(None, (problem.dtype, problem.out_dtype)))
    text = f"{output} = {result}  {types}"
    if blas and isinstance(problem, Gemm) and multiplies(problem.defined):
        m, n, k = problem.blas
        text += f"  (BLAS m={m}, n={n}, k={k})"
    return text
