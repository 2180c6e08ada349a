"""`autotune.kernel`: a kernel of one's own from a function, a source or a template."""

from __future__ import annotations

import functools
import inspect
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from autotune.core import arguments
from autotune.core.errors import InputError
from autotune.core.suggestions import must_be
from autotune.families.headers import with_headers
from autotune.own.answer import with_answer
from autotune.own.compiler_options import Options, divided, options_line
from autotune.own.cuda_text import CudaText, cuda_template, cuda_text, kernel_arguments
from autotune.own.definition import Definition, raw
from autotune.own.description import Description, Launched, Shape, Values
from autotune.own.function_text import FunctionText, function_text
from autotune.own.numba_template import check_arguments, numba_template
from autotune.own.own_kernel import OwnKernel
from autotune.own.taking import KERNEL_MODULES, read_now
from autotune.runtime.loading import check_place
from autotune.targets.registry import LANGUAGES
from autotune.tuning.settings import Run

Headers: TypeAlias = "Callable[..., str]"
"""Puts the headers that a text includes in quotes into it."""

_OPTIONS = ("until", "sampler", "storage", "seed", "workers", "effort", "objective", "progress")
"""Options of `autotune.tune` that a kernel's definition may have."""


def kernel(
    function: Callable[..., Any] | None = None,
    *,
    operands: Mapping[str, Shape],
    out: Mapping[str, Shape],
    reference: Any,
    parameters: Mapping[str, Values],
    scalars: Mapping[str, float] | None = None,
    inputs: Callable[..., Any] | Mapping[str, Any] | None = None,
    tolerance: float | Mapping[str, float] = 0.0,
    accept: Callable[..., Any] | None = None,
    restrictions: Any = (),
    derived: Mapping[str, str] | None = None,
    source: str | Path | None = None,
    template: str | Path | None = None,
    grid: Launched | None = None,
    block: Launched | None = None,
    shared_bytes: Launched = "0",
    launch: Mapping[str, Any] | None = None,
    compiler_options: Options = (),
    name: str | None = None,
    target: str | None = None,
    dtypes: Sequence[Any] = (),
    flops: str | None = None,
    cases: Sequence[Shape | Sequence[int] | Mapping[str, int]] = (),
    finite: bool = False,
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
            ``("M", "N + 1")``; with a type of its own ``"int32[MxN]"``, or a table (`Shape`).
            Every size is a dimension of some operand, or follows from one.
        out: names and shapes of those that are written, ``()`` of a single number. One that is
            among the operands too is changed in place. A size that is a dimension of these alone
            is passed by name (``kernel(x, K=8)``), or follows from `out`.
        reference: what they become: a formula (``"alpha * A @ x"``, see `Formula`), or a function
            of NumPy arrays, and of sizes by name, run in float64 where kernels are verified; of
            several outputs it gives a tuple. Or the answer, an array or a tuple of them, for the
            operands in `inputs`: the kernel is for their sizes then.
        parameters: what is tuned: values by name, or tables with ``values``, and ``default``,
            ``summary`` or ``runtime``.
        scalars: their defaults by name; one of NumPy's integers is of that type.
        inputs: a function that makes operands, and scalars, where random ones would not do: of
            sizes, ``dtype`` and ``rng`` (a generator of NumPy's), as far as it takes them, it
            gives a dictionary of arrays. Operands that it leaves out are drawn. Of an answer the
            dictionary itself.
        tolerance: how far outputs may be off, of all or by name: relative to an element or to the
            root mean square of all, whichever is larger; of integers the difference itself. What
            is not named follows from the type (`docs/own-kernel.md`).
        accept: a function of what is expected and what was found, tuples where outputs are
            several, that says whether that is right; nothing else is compared then.
        restrictions: what must hold: expressions over parameters, sizes and limits of the device,
            or functions of parameters by name, or of a dictionary of them, as lambdas; a mapping
            gives each its reason.
        derived: names for expressions, to be used in others.
        source: CUDA C++: a path, or the text.
        template: a path, or the text.
        grid: thread blocks along x, y and z, expressions; on a GPU. A function of parameters and
            sizes by name, or of a dictionary of them, may stand for them, and for one of them.
        block: threads of a block.
        shared_bytes: dynamic shared memory of a block.
        launch: more of a launch: ``workspace_bytes``, of which the first ``zeroed_bytes`` are zero
            when a call begins, and which kernels leave so; kernels that run ``before`` and
            ``after``, with their own ``grid`` and ``block``; ``cluster``; ``cooperative``;
            ``spill_limit``, bytes.
        compiler_options: of NVRTC, for a source: a list of texts in which ``{NAME}`` is a
            parameter's value (``"--maxrregcount={REGISTERS}"``), or a function of parameters that
            gives it. Headers in folders, ``-Iinclude``, become part of the source.
        name: what it is called; None takes the function's own name.
        target: "cpu" or "cuda"; None follows from the rest.
        dtypes: element types that it is for; None takes those that the source leaves open.
        flops: how many operations it takes, an expression over sizes; one an element if left out.
        cases: shapes to verify candidates at, instead of ragged ones of every size: numbers in
            the order in which operands mention sizes, or by their names.
        finite: whether it is for finite operands alone; if not, it must give NaN and infinity
            where the reference does.
        summary: one line for listings; None takes the function's docstring.
        tune: whether a call may tune; AUTOTUNE_TUNE=0 forbids it to all kernels.
        trials: the most candidates to try.
        timeout: seconds that tuning may take.
        device: which one; None takes that of the operands, or the first.
        cache: the user's cache; None takes the default place.
        options: more of `autotune.tune`: until, sampler, storage, seed, workers, effort,
            objective, progress.

    Returns:
        An `OwnKernel`; without function, source and template a decorator that makes one.

    Raises:
        InputError: something does not fit; the message begins with the kernel's name.
    """
    given = [each for each in (function, source, template) if each is not None]
    if len(given) > 1:
        raise InputError("a kernel is a function, or a source, or a template: give one of them")
    said = Description(
        operands=operands,
        out=out,
        reference=reference,
        parameters=parameters,
        scalars={} if scalars is None else scalars,
        inputs=inputs,
        tolerance=tolerance,
        accept=accept,
        restrictions=restrictions,
        derived={} if derived is None else derived,
        grid=grid,
        block=block,
        shared_bytes=shared_bytes,
        launch={} if launch is None else launch,
        name=name,
        target=target,
        dtypes=dtypes,
        flops=flops,
        cases=cases,
        finite=finite,
        summary=summary,
    )

    try:
        said = with_answer(said, cache)
    except InputError as error:
        raise InputError(f"kernel {name or ''}: {error}".replace(" :", ":")) from error

    def made(definition: Definition, write: Callable[[], str]) -> OwnKernel:
        told = {"trials": trials, "timeout": timeout, **options}
        try:
            check_place(definition.target, device, cache)
            _check_options(**told)
        except InputError as error:
            raise InputError(f"kernel {definition.name}: {error}") from error
        return OwnKernel(
            definition,
            lambda: definition.files(write()),
            options=told,
            may_tune=tune,
            device=device,
            cache=cache,
        )

    def decorated(plain: Callable[..., Any]) -> OwnKernel:
        result = made(*_of_function(said, function_text(plain)))
        functools.update_wrapper(result, getattr(plain, "py_func", plain), updated=())
        return result

    if source is not None:
        given_options, folders = divided(compiler_options)
        text, headers = _text("source", source, folders)
        plain = cuda_text(text, name)
        plain = replace(plain, text=headers(plain.text))
        return made(*_of_source(said, plain, given_options))
    if compiler_options:
        raise InputError(
            "compiler_options must be left out but with a source: a template has them in a line "
            "like // nvrtc: --use_fast_math, a function in @njit(...)"
        )
    if template is not None:
        text, headers = _text("template", template)
        return made(*_of_template(said, headers(text, lambda body: "\n".join(raw(body)))))
    return decorated if function is None else decorated(function)


def _check_options(**options: Any) -> None:
    """Refuse what `autotune.tune` would, before a call tunes."""
    for name in options:
        if name not in ("trials", "timeout", *_OPTIONS):
            *known, _ = inspect.signature(kernel).parameters
            raise InputError(must_be("a keyword of autotune.kernel", name, [*known, *_OPTIONS]))
    Run.of(**options)


def _of_function(said: Description, text: FunctionText) -> tuple[Definition, Callable[[], str]]:
    """A function for Numba: what it defines, and what writes its template."""
    if said.name not in (None, text.name):
        raise InputError(
            f"kernel {text.name}: name must be left out: the function is called {text.name}"
        )
    definition = said.define(text.name, "cpu", "a function for Numba", summary=text.summary)
    read_now(text, KERNEL_MODULES)
    check_arguments(definition, text)
    defined = definition.operation
    definition = definition.taking(
        [
            *map(defined.spelled, defined.sizes),
            *(each for each, _ in defined.scalars),
            *(each.name.lower() for each in defined.operands),
        ]
    )
    return definition, lambda: numba_template(definition, text)


def _of_source(
    said: Description, text: CudaText, options: Options
) -> tuple[Definition, Callable[[], str]]:
    """A source of CUDA C++."""
    dtypes, types = text.types(said.operands, said.out, said.scalars)
    definition = said.define(text.name, "cuda", "a source of CUDA C++", dtypes=dtypes, types=types)
    for name, entry in definition.parameters.items():
        if entry.get("runtime"):
            raise InputError(
                f"kernel {text.name}: parameters.{name} must not be runtime: parameters of a "
                "source are macros"
            )
    further = () if definition.launch is None else definition.launch.kernels
    workspace = definition.launch is not None and "workspace_bytes" in definition.launch.more
    text = text.with_kernels(further)
    if definition.launch is not None and "cluster" in definition.launch.more:
        text = text.in_clusters(definition.launch.cluster, definition.compiled)
    order = kernel_arguments(text, definition.operation, definition.dtypes, workspace=workspace)
    definition = definition.taking(order)
    words = {name: [*found] for name, found in definition.words.items()}
    line = options_line(options, definition.values, words)
    return definition, lambda: cuda_template(definition, text, line)


def _of_template(said: Description, text: str) -> tuple[Definition, Callable[[], str]]:
    """A template of either."""
    if said.name is None:
        raise InputError("name must be given with a template: it is that of the entry")
    target = said.target
    if target is None:
        target = "cuda" if "__global__" in text else "cpu"
    targets = sorted(name for name, each in LANGUAGES.items() if each.own_operations)
    if target not in targets:
        raise InputError(f"kernel {said.name}: {must_be('target', target, targets)}")
    return said.define(said.name, target, "a template"), lambda: text


def _text(key: str, given: str | Path, folders: tuple[Path, ...] = ()) -> tuple[str, Headers]:
    """A text, or that of the file at a path; and what puts its headers into it."""
    known = isinstance(given, (str, os.PathLike)) and given != ""
    arguments.must(key, "a path, or the text", given, known)
    if isinstance(given, str) and ("\n" in given or not given.endswith((".cu", ".j2", ".cuh"))):
        return textwrap.dedent(given), functools.partial(_with_headers, key, folders)
    try:
        path = Path(given)
        near = (path.parent, *folders)
        return path.read_text(encoding="utf-8"), functools.partial(_with_headers, key, near)
    except (OSError, ValueError) as error:  # of bytes that are no UTF-8, or a path with a null
        raise InputError(f"{key} {given} cannot be read: {error}") from error


def _with_headers(
    key: str, folders: tuple[Path, ...], text: str, written: Callable[[str], str] = str
) -> str:
    """A source with the headers in it that folders have; all others are left to the compiler."""
    try:
        return with_headers(text, folders, written).text
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"a header of {key} cannot be read: {error}") from error
