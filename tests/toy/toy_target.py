"""A target of another package: emitted Python that multiplies with NumPy, panel by panel.

It is what somebody else would write and install: it imports `autotune` and `autotune.targets`
alone, and nothing in this project knows its name.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import numpy as np

from autotune import Gemm
from autotune.targets import (
    Baseline,
    Binary,
    BoundKernel,
    Candidate,
    CompileError,
    Deadline,
    Device,
    DeviceFingerprint,
    Evaluator,
    Finals,
    InputError,
    KernelFamily,
    Language,
    Measurement,
    OperandError,
    Option,
    Outcome,
    Placement,
    ProgramCache,
    Report,
    Target,
    Work,
    check_module,
    load_module,
    median_interval,
    render,
    silent,
)

ORDERS = ("rows", "columns")
CALLS = 5


@dataclass(frozen=True, slots=True)
class ToyLimits:
    """What NumPy offers."""

    longest_panel: int
    row_major: int

    def names(self) -> dict[str, int]:
        return {"longest_panel": self.longest_panel, "row_major": self.row_major}


class ToyTarget(Target):
    """Python on one thread of the host, with operands in one order of memory or the other."""

    name: ClassVar[str] = "toy"
    OPTIONS: ClassVar[tuple[Option, ...]] = (
        Option("order", "rows (the default) or columns first", metavar="ORDER", choices=ORDERS),
        Option("panel_limit", "the longest panel (default 64)", int),
        Option("operands", "any word", metavar="WHERE"),
    )

    def __init__(
        self, order: str = "rows", panel_limit: int = 64, operands: str = "anywhere"
    ) -> None:
        if order not in ORDERS:
            raise InputError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
        self._order = order
        self._panel_limit = panel_limit

    @classmethod
    def language(cls) -> Language:
        return Language(
            limits=frozenset(each.name for each in fields(ToyLimits)),
            check=check_module,
            reserved=lambda operation: frozenset({"a", "b", "out"}),
            folders=(Path(__file__).with_name("toy_families"),),
        )

    @classmethod
    def placement(cls, fingerprint: DeviceFingerprint) -> Placement:
        given = {"order": fingerprint.fields["order"], "panel_limit": fingerprint.fields["panel"]}
        defaults = {"order": "rows", "panel_limit": 64}
        return Placement({name: v for name, v in given.items() if v != defaults[name]})

    def device(self, problem: Gemm | None = None, name: int | str | None = None) -> Device:
        if name is not None:
            raise InputError(f"target toy has one device, got {name!r}: leave it out")
        return Device(
            DeviceFingerprint("toy", "NumPy", {"order": self._order, "panel": self._panel_limit}),
            ToyLimits(self._panel_limit, int(self._order == "rows")),
            toolchain={"numpy": np.__version__},
            state={},
        )

    def evaluator(self, work: Work, beside: Evaluator | None = None) -> Evaluator:
        return ToyEvaluator(self, work)

    def kernel(
        self,
        family: KernelFamily,
        candidate: Candidate,
        problem: Gemm,
        device: Device,
        programs: ProgramCache,
        binary: Binary | None = None,
    ) -> BoundKernel:
        source = render(family, candidate.configuration, dtype=problem.dtype)
        multiply = load_module(programs.write(source, family.name)).gemm
        order = "C" if self._order == "rows" else "F"

        def kernel(
            a: Any,
            b: Any,
            out: Any = None,
            alpha: float = 1.0,
            beta: float = 0.0,
            stream: Any = None,
        ) -> Any:
            for name, array, shape in (("a", a, problem.a_shape), ("b", b, problem.b_shape)):
                if getattr(array, "shape", None) != shape:
                    raise OperandError(f"{name} must be an array of shape {shape}")
            if out is None:
                out = np.zeros(problem.c_shape, problem.dtype, order)
            multiply(a, b, out, alpha, beta)
            return out

        return kernel

    def library(self, problem: Gemm, tuned: Callable[[], BoundKernel]) -> BoundKernel | None:
        def product(
            a: Any, b: Any, out: Any = None, alpha: float = 1, beta: float = 0, stream: Any = None
        ) -> Any:
            found = alpha * (a @ b) + (0 if out is None else beta * out)
            if out is None:
                return found
            out[...] = found
            return out

        return product


class ToyEvaluator:
    """Measures in this process: nothing that NumPy does can take it along."""

    batch = 8
    compiles_ahead = False
    finals_s = 0.1

    def __init__(self, target: ToyTarget, work: Work) -> None:
        self.device = work.device
        self.deadline = Deadline()
        self.report: Report = silent
        self._target = target
        self._work = work
        rng = np.random.default_rng(work.seed)
        problem = work.problem
        self._a, self._b, self._c = (
            rng.standard_normal(shape).astype(problem.dtype)
            for shape in (problem.a_shape, problem.b_shape, problem.c_shape)
        )
        self._scratch = self._c.copy()
        exact = [array.astype(np.float64) for array in (self._a, self._b, self._c)]
        self._expected = 2.0 * (exact[0] @ exact[1]) - exact[2]
        self._allowed = (
            4
            * (problem.n + 2)
            * np.finfo(problem.dtype).eps
            * (2 * abs(exact[0]) @ abs(exact[1]) + abs(exact[2]))
        )

    def is_ready(self, candidate: Candidate) -> bool:
        return True

    def prepare(self, candidates: Sequence[Candidate]) -> None:
        """Nothing: Python compiles a module as it is loaded."""

    def evaluate(self, candidate: Candidate, best_s: float | None) -> Measurement:
        work = self._work
        space = work.families[candidate.family].space(work.problem, work.device.limits)
        if (reason := space.rejection(candidate.configuration)) is not None:
            return Measurement(Outcome.REJECTED, reason=str(reason))
        try:
            kernel = self._target.kernel(
                work.families[candidate.family],
                candidate,
                work.problem,
                work.device,
                work.programs,
            )
        except CompileError as error:
            return Measurement(Outcome.COMPILE_FAILED, reason=str(error))
        found = kernel(self._a, self._b, self._c.copy(), 2.0, -1.0)
        error = float(np.max(abs(found - self._expected) / self._allowed))
        if not error <= 1:
            return Measurement(
                Outcome.WRONG_RESULT, reason=f"error is {error:.3g} times what is allowed"
            )
        return self._timed(lambda: kernel(self._a, self._b, self._scratch, 1.0, 0.0), error)

    def finals(self, candidates: Sequence[Candidate]) -> Finals:
        baseline = self.baseline()
        measurements = tuple(self.evaluate(each, None) for each in candidates)
        return Finals(
            measurements,
            tuple(m.median_s and baseline.median_s / m.median_s for m in measurements),
            baseline,
            tuple((m.median_s,) if m.median_s else () for m in measurements),
        )

    def baseline(self) -> Baseline:
        timed = self._timed(lambda: np.matmul(self._a, self._b, out=self._scratch), 0.0)
        assert timed.median_s is not None
        assert timed.interval_s is not None
        return Baseline("NumPy", timed.median_s, timed.interval_s, 1, {})

    check_baseline = baseline

    def binary(self, candidate: Candidate) -> Binary | None:
        return None

    def close(self) -> None:
        """Nothing is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @staticmethod
    def _timed(call: Callable[[], object], error: float) -> Measurement:
        times = []
        for _ in range(CALLS):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        middle = statistics.median(times)
        return Measurement(Outcome.OK, middle, median_interval(times), len(times), error)
