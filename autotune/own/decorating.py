"""`autotune.kernel`: a kernel of one's own from a function, a source or a template."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.core.errors import InputError
from autotune.own.cuda_text import cuda_template, cuda_text, kernel_arguments
from autotune.own.definition import Shape, Values, define
from autotune.own.function_text import function_text
from autotune.own.numba_template import check_arguments, numba_template
from autotune.own.own_kernel import OwnKernel

_SUFFIXES = {"cpu": ".py.j2", "cuda": ".cu.j2"}


def kernel(
    function: Callable[..., Any] | None = None,
    *,
    operands: Mapping[str, Shape],
    out: Mapping[str, Shape],
    reference: str | Callable[..., Any],
    parameters: Mapping[str, Values],
    scalars: Mapping[str, float] | None = None,
    restrictions: Sequence[str] | Mapping[str, str] = (),
    derived: Mapping[str, str] | None = None,
    source: str | Path | None = None,
    template: str | Path | None = None,
    grid: Sequence[str] | None = None,
    block: Sequence[str] | None = None,
    shared_bytes: str = "0",
    name: str | None = None,
    target: str | None = None,
    dtypes: Sequence[Any] = (),
    flops: str | None = None,
    cases: Sequence[Shape | Sequence[int]] = (),
    summary: str = "",
    tune: bool = True,
    trials: int = 200,
    timeout: float = 60.0,
    device: int | str | None = None,
    cache: str | Path | None = None,
    **options: Any,
) -> Any:
    """A kernel of one's own, tuned when it is first called with operands of some shapes.

    As a decorator it takes a function for Numba, whose arguments are the operands, scalars and
    parameters, in any order, and which stores the result in the operand that is written. Operands
    are contiguous arrays, and parameters are constants: their values are written into the source.
    With ``from numba import prange`` and a parameter `threads`, threads share its loops.

    With `source`, it is CUDA C++ with a ``__global__`` function, before which every parameter is
    defined as a macro. The function takes pointers called as the operands are, sizes as int,
    scalars, and for operands whose rows may be apart ``ld<name>``, whatever case they are in, in
    any order; ``T`` is the element type. With `template` it is a Jinja template
    of either (``templates/README.md``).

    Whatever it is becomes the files of an ordinary family, in a folder of the cache
    (`OwnKernel.folder`): candidates are pruned, run in a process of their own and verified against
    the reference, and winners are stored and loaded, as those of all families are.

    Args:
        function: what is decorated.
        operands: shapes of the inputs by name, in the order of a call: ``"MxN"``, or expressions
            ``("M", "N + 1")``. Every size is a dimension of some operand.
        out: name and shape of the one that is written.
        reference: what that becomes: a formula (``"alpha * A @ x"``, see `Formula`), or a function
            of NumPy arrays, run in float64 where kernels are verified.
        parameters: what is tuned: values by name, or tables with ``values``, and ``default``,
            ``summary`` or ``runtime``.
        scalars: their defaults by name.
        restrictions: expressions that must hold, over parameters, sizes and limits of the device;
            a mapping gives each its reason.
        derived: names for expressions, to be used in others.
        source: CUDA C++: a path, or the text.
        template: a path, or the text.
        grid: thread blocks along x, y and z, expressions; on a GPU.
        block: threads of a block.
        shared_bytes: dynamic shared memory of a block.
        name: what it is called; None takes the function's own name.
        target: "cpu" or "cuda"; None follows from the rest.
        dtypes: element types that it is for; None takes those that the source leaves open.
        flops: how many operations it takes, an expression over sizes; one an element if left out.
        cases: further shapes to verify candidates at.
        summary: one line for listings; None takes the function's docstring.
        tune: whether a call may tune; AUTOTUNE_TUNE=0 forbids it to all kernels.
        trials: the most candidates to try.
        timeout: seconds that tuning may take.
        device: which one; None takes that of the operands, or the first.
        cache: the user's cache; None takes the default place.
        options: more of `autotune.tune`: sampler, seed, workers, effort, progress.

    Returns:
        An `OwnKernel`; without function, source and template a decorator that makes one.

    Raises:
        InputError: something does not fit; the message begins with the kernel's name.
    """
    given = [each for each in (function, source, template) if each is not None]
    if len(given) > 1:
        raise InputError("a kernel is a function, or a source, or a template: give one of them")
    if not given:
        rest = {key: value for key, value in locals().items() if key not in _ITSELF}
        return functools.partial(kernel, **rest, **options)

    def defined(called: str, where: str, kinds: Sequence[Any], about: str) -> Any:
        launch = None
        if where == "cuda":
            if grid is None or block is None:
                raise InputError(
                    f"kernel {called}: grid and block must say how it is launched, like "
                    'grid=["ceildiv(M, ROWS)"], block=["THREADS"]'
                )
            launch = (grid, block, shared_bytes)
        return define(
            called,
            where,
            operands=operands,
            out=out,
            reference=reference,
            parameters=parameters,
            scalars=scalars or {},
            restrictions=restrictions,
            derived=derived or {},
            flops=flops,
            dtypes=dtypes or kinds,
            cases=cases,
            summary=summary or about,
            launch=launch,
        )

    if function is not None:
        text = function_text(function)
        _only(target, "cpu", "a function for Numba")
        definition = defined(name or text.name, "cpu", (), text.summary)
        check_arguments(definition, text)
        definition = definition.taking(
            [
                *(each.lower() for each in definition.operation.sizes),
                *(each for each, _ in definition.operation.scalars),
                *(each.name.lower() for each in definition.operation.operands),
            ]
        )

        def make() -> str:
            return numba_template(definition, text)

    elif source is not None:
        _only(target, "cuda", "a source of CUDA C++")
        found = cuda_text(_text(source), name)
        definition = defined(found.name, "cuda", found.dtypes(), "")
        order = kernel_arguments(found, definition.operation, definition.dtypes)
        definition = definition.taking(order)

        def make() -> str:
            return cuda_template(definition, found)

    else:
        body = _text(template or "")
        where = target or ("cuda" if "__global__" in body else "cpu")
        if name is None:
            raise InputError("name must be given with a template: it is the entry's")
        if where not in _SUFFIXES:
            raise InputError(f"target must be cpu or cuda, got {where!r}")
        definition = defined(name, where, (), "")

        def make() -> str:
            return body

    made = OwnKernel(
        definition,
        lambda: definition.files(make(), _SUFFIXES[definition.target]),
        options={"trials": trials, "timeout": timeout, **options},
        may_tune=tune,
        device=device,
        cache=cache,
    )
    if function is not None:
        functools.update_wrapper(made, getattr(function, "py_func", function), updated=())
    return made


_ITSELF = ("function", "given", "options")


def _only(target: str | None, only: str, what: str) -> None:
    if target not in (None, only):
        raise InputError(f"target must be {only} for {what}, got {target!r}")


def _text(given: str | Path) -> str:
    """A text, or that of the file at a path."""
    if isinstance(given, str) and ("\n" in given or not given.endswith((".cu", ".j2", ".cuh"))):
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"source {given} cannot be read: {error}") from error
