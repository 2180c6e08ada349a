"""Verdicts on kernels that others wrote: verified, timed beside their reference, or refused.

A kernel and its reference become a family like any other (`autotune.own`), so that what every
trial goes through judges them: processes of their own, ragged shapes, guard zones, fresh operands
after timing.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import importlib
import importlib.util
import itertools
import linecache
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from autotune.core import arguments
from autotune.core.configuration import Candidate, Configuration
from autotune.core.deadline import Deadline
from autotune.core.errors import AutotuneError, InputError, OutOfTimeError
from autotune.core.measurement import Measurement, Outcome
from autotune.core.printable import first_line, shown
from autotune.core.suggestions import must_be
from autotune.measuring.effort import Effort
from autotune.own import OwnKernel, kernel
from autotune.own.taking import REFERENCE_MODULES
from autotune.tuning.context import TuningContext
from autotune.tuning.settings import Run

if TYPE_CHECKING:
    from autotune.measuring.evaluator import Evaluator

EFFORT = Effort(finals_s=1.0)
"""A third of a second for its own time, a second for turns with the reference."""

_DESCRIBING = ("scalars", "grid", "block", "shared_bytes", "name", "flops", "cases", "finite")
_DECORATORS = ("njit", "numba.njit", "nb.njit")
_NUMBERS = itertools.count()


@dataclass(frozen=True, slots=True)
class Submission:
    """A kernel, what it is to compute, and for which shape.

    Attributes:
        kernel: CUDA C++ or a Python function for Numba, as text, a path, or ``module:function``;
            also an `OwnKernel`, by ``module:name``, which says the rest itself.
        shape: sizes in the order in which the operands name them, as in "64x48".
        reference: a formula, a Python function as text, or ``module:function``.
        operands: shapes of the inputs, in the order of the kernel's arguments.
        out: name and shape of the output.
        dtype: element type; empty takes the kernel's first.
        threads: that a processor may use; None takes all.
        parameters: values of the kernel's parameters.
        describing: more of `autotune.kernel`: scalars, grid, block, shared_bytes, name, flops,
            cases, finite.
        timeout: seconds for everything.
    """

    kernel: str
    shape: str
    reference: str = ""
    operands: Mapping[str, Any] = field(default_factory=dict)
    out: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = ""
    threads: int | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    describing: Mapping[str, Any] = field(default_factory=dict)
    timeout: float = 60.0

    @classmethod
    def of(cls, request: Any) -> Self:
        """Read a request, as JSON has it.

        Raises:
            InputError: a key is unknown, or missing, or holds something else.
        """
        keys = [each for each in cls.__slots__ if each != "describing"]
        arguments.must("a request", "a JSON object", request, isinstance(request, dict))
        for key in request:
            if key not in (*keys, *_DESCRIBING, "id"):
                raise InputError(must_be("a key of a request", key, [*keys, *_DESCRIBING, "id"]))
        told = {key: request[key] for key in keys if key in request}
        for key in ("kernel", "shape", "reference", "dtype"):
            given = told.get(key, "" if key in ("reference", "dtype") else None)
            arguments.must(key, "text", given, isinstance(given, str))
        for key, example in (
            ("operands", '{"A": "MxN"}'),
            ("out", '{"y": "M"}'),
            ("parameters", '{"rows": 4}'),
        ):
            arguments.mapping(key, told.get(key, {}), example)
        told["timeout"] = arguments.seconds("timeout", told.get("timeout", 60.0))
        describing = {key: request[key] for key in _DESCRIBING if key in request}
        return cls(**told, describing=describing)

    def made(self, cache: str) -> OwnKernel:
        """The kernel as a family, below a folder unless it says its own.

        Raises:
            InputError: something does not fit, or cannot be read.
        """
        made: OwnKernel
        text, options = self.kernel, dict(self.describing)
        values = {name: [value] for name, value in self.parameters.items()}
        if text.endswith((".cu", ".cuh")) or "__global__" in text:
            source: str | Path = text if "\n" in text else Path(text)
            options |= {"source": source, "parameters": values or {"AS_WRITTEN": [1]}}
            made = self._described(options, cache)
            return made
        function = _function("kernel", text)
        if isinstance(function, OwnKernel):
            for key in ("reference", "operands", "out"):
                if getattr(self, key):
                    raise InputError(f"{key} must be left out: kernel {function.name} says it")
            return function
        if not values:
            function, values = _with_parameter(function, {**self.operands, **self.out})
        made = self._described({**options, "parameters": values}, cache)(function)
        return made

    def _described(self, options: Mapping[str, Any], cache: str) -> Any:
        reference = self.reference
        whole = reference if ":" not in reference else _function("reference", reference)
        return kernel(
            operands=self.operands, out=self.out, reference=whole, cache=cache, **options
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a check.

    Attributes:
        measurement: outcome, reason, time and its interval.
        ratio: the reference's time, or the vendor library's, over the kernel's, from the same
            rounds; None where there is none.
        beside: that reference's name.
        unrated: why a kernel that was timed has no ratio.
    """

    measurement: Measurement
    ratio: float | None = None
    beside: str | None = None
    unrated: str = ""

    @property
    def document(self) -> dict[str, Any]:
        """The answer, as JSON has it."""
        found = self.measurement
        return {
            "verified": found.ok,
            "outcome": str(found.outcome),
            "reason": found.reason or self.unrated,
            "median_s": found.median_s,
            "interval_s": None if found.interval_s is None else list(found.interval_s),
            "repeats": found.repeats,
            "error": found.error,
            "ratio": self.ratio,
            "beside": self.beside,
        }


class Checker:
    """Judges one submission after the other, in processes that are kept between them.

    Used as a context manager.

    Args:
        device: which GPU; None takes the first.
        cache: where emitted sources go; None takes the user's cache. Nothing is recorded there,
            and families that submissions describe are gone at the end.
    """

    def __init__(self, device: int | str | None = None, cache: str | Path | None = None) -> None:
        self._device = device
        self._cache = cache
        self._described = tempfile.TemporaryDirectory(prefix="autotune-check-")
        self._kept: dict[str, Evaluator] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._described:
            while self._kept:
                self._kept.popitem()[1].close()

    def check(self, submission: Submission) -> Verdict:
        """Verify and time a kernel; what is wrong with it is the verdict.

        Raises:
            AutotuneError: the submission cannot be judged: it is described wrongly, or there is
                no such device.
        """
        deadline = Deadline(submission.timeout)
        made = submission.made(self._described.name)
        fields = {"dtype": submission.dtype} if submission.dtype else {}
        sizes = made.operation.parse_shape(submission.shape)
        named = dict(zip(made.operation.sizes, sizes, strict=True))
        problem = made.problem(**named, **fields, threads=submission.threads)
        context = TuningContext.of(
            problem,
            target=made.target,
            device=self._device,
            families=(),
            extra_families=[made.folder],
            cache=self._cache,
            options={},
        )
        family = context.families[made.name]
        values = {
            each.name: each.values[0] if each.default is None else each.default
            for each in family.parameters
        }
        chosen = Candidate(made.name, Configuration({**values, **submission.parameters}))
        evaluator = context.evaluator(problem, Run(effort=EFFORT), self._kept.get(made.target))
        if made.target not in self._kept:
            self._kept[made.target] = evaluator
        try:
            evaluator.deadline = deadline
            finals = evaluator.finals([chosen])
        except OutOfTimeError:
            late = f"not judged within {submission.timeout:g} s"
            return Verdict(Measurement(Outcome.TIMEOUT, reason=late))
        finally:
            if evaluator is not self._kept[made.target]:
                evaluator.close()
        (found,), (ratio,), beside = finals.measurements, finals.ratios, finals.baseline
        if ratio is None or beside is None:
            why = "nothing to compare with could be timed" if beside is None else beside.noise
            return Verdict(found, unrated=f"no ratio: {why}" if found.ok else "")
        return Verdict(found, ratio, beside.name)

    def answer(self, request: Any) -> dict[str, Any]:
        """The answer to a request, as JSON has both; it has the request's `id`."""
        known = {"id": request.get("id") if isinstance(request, dict) else None}
        try:
            return known | self.check(Submission.of(request)).document
        except AutotuneError as error:
            nothing = Verdict(Measurement(Outcome.REJECTED)).document
            return known | nothing | {"outcome": "refused", "reason": str(error)}


def _function(what: str, text: str) -> Any:
    """A function by its text, or by ``module:name`` or ``file.py:name``."""
    if "\n" in text:
        return _defined(what, text)
    place, _, name = text.rpartition(":")
    if not place or not name.isidentifier():
        raise InputError(f"{what} must be module:function, or a text, got {shown(text)}")
    try:
        return getattr(imported(place), name)
    except Exception as error:  # of a module that may be anybody's
        told = f"{type(error).__name__}: {first_line(error)}"
        raise InputError(f"{what} {shown(text)} cannot be imported ({told})") from error


def imported(place: str) -> ModuleType:
    """A module by its name, or by the path of its file."""
    if not place.endswith(".py"):
        return importlib.import_module(place)
    spec = importlib.util.spec_from_file_location(Path(place).stem, place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _defined(what: str, text: str) -> Callable[..., Any]:
    """The last function of a text that imports, names constants and defines functions.

    Nothing else is run here: whatever the functions do, they do where kernels run.
    """
    name = f"<{what} {next(_NUMBERS)}>"
    try:
        module = ast.parse(text)
        for each in module.body:
            if not _is_harmless(each):
                raise InputError(
                    f"line {each.lineno} must be a constant, a function with no decorator but "
                    f"njit, or an import of {', '.join(REFERENCE_MODULES)}"
                )
        functions = [each.name for each in module.body if isinstance(each, ast.FunctionDef)]
        if not functions:
            raise InputError("it must define a function")
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        names: dict[str, Any] = {}
        unevaluated = __future__.annotations.compiler_flag
        exec(compile(text, name, "exec", unevaluated, dont_inherit=True), names)
        found: Callable[..., Any] = names[functions[-1]]
        return found
    except Exception as error:  # the text may be anybody's
        raise InputError(f"the text of {what} is refused: {first_line(error)}") from error


def _is_harmless(node: ast.stmt) -> bool:
    match node:
        case ast.Import(names=names):
            return all(each.name.partition(".")[0] in REFERENCE_MODULES for each in names)
        case ast.ImportFrom(module=str(module), level=0):
            return module.partition(".")[0] in (*REFERENCE_MODULES, "__future__")
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign(targets=[ast.Name()], value=value):
            return _is_literal(value)
        case ast.FunctionDef():
            defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
            return all(map(_is_literal, defaults)) and all(map(_compiles, node.decorator_list))
    return False


def _compiles(decorator: ast.expr) -> bool:
    """True for Numba's, with nothing that it would evaluate or compile at once."""
    if isinstance(decorator, ast.Call):
        options = [each.value for each in decorator.keywords]
        return not decorator.args and _compiles(decorator.func) and all(map(_is_literal, options))
    return ast.unparse(decorator) in _DECORATORS


def _is_literal(node: ast.expr) -> bool:
    with contextlib.suppress(ValueError):
        ast.literal_eval(node)
        return True
    return False


def _with_parameter(
    function: Callable[..., Any], operands: Iterable[str]
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A function that has a parameter, of one value, and calls one that has none."""
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise InputError(f"kernel must be a function, got {shown(function)}")
    given = ", ".join(operands)
    text = f"def checked_{name}({given}, as_written):\n    {name}({given})\n"
    wrapper = _defined("kernel", text)
    wrapper.__globals__[name] = function
    return wrapper, {"as_written": [1]}
