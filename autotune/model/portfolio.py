"""A portfolio: the programs that serve every shape on a device, what they do and at what prices.

What a program does at a time is counted as its family's file says.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from autotune.core.checks import AnyLine, Line, Sha256, Texts, Whole
from autotune.core.configuration import Configuration, Value
from autotune.core.device import DeviceFingerprint, DeviceLimits
from autotune.core.errors import SpaceError
from autotune.core.limits import GpuLimits
from autotune.core.printable import shown
from autotune.families.family import KernelFamily
from autotune.families.gpu.occupancy import blocks_per_multiprocessor
from autotune.model.terms import UNIT, Chip, Unit
from autotune.operations.problem import Gemm, element_sizes
from autotune.space.compiled import Group, UndecidedError, compiled

LARGEST = 96
"""Programs that a portfolio has at most, of all layouts together."""

PLAIN = "nn"
"""The layout that others are taken to be like, where nothing else is known of them."""

# Prices are nanoseconds as a rule. Above such bounds a sum of them is no finite time.
Price: TypeAlias = Annotated[float, Meta(ge=0, le=1.0)]
Spread: TypeAlias = Annotated[float, Meta(ge=0, le=10.0)]
Loss: TypeAlias = Annotated[float, Meta(ge=0, le=1e3)]
Products: TypeAlias = Annotated[float, Meta(ge=0, le=1e60)]
Resident: TypeAlias = Annotated[float, Meta(gt=0, le=1 << 16)]
Threads: TypeAlias = Annotated[int, Meta(ge=1, le=2**63 - 1)]


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a program.

    Attributes:
        family: its family's name.
        layout: how operands are stored.
        configuration: with the lowest values of its free parameters.
    """

    family: str
    layout: str
    configuration: Configuration


@dataclass(frozen=True, slots=True)
class Entry:
    """One program of a portfolio.

    Attributes:
        family: its family.
        family_digest: the family's, when it was measured: of another one nothing is known.
        layout: how its operands are stored.
        configuration: with any values for the parameters that `free` names.
        free: the parameters that are chosen with the sizes: those that are passed at the call and
            that the model knows the effect of.
        calls: values of those, in their order, of the calls that are the best somewhere; empty for
            all there are.
        resident: units that a multiprocessor holds at a time, by the binary's own resources.
        prices: seconds per term, in the order of `autotune.model.terms.TERMS`.
        spread: standard deviation of the logarithm of measured over predicted times.
        measured: times that the prices were fitted to.
        largest: products, M N K, of the largest problem among them; 0 where that is not known.
        binary: SHA-256 of the binary; None where none is kept.
        support: SHA-256 of the kernel that copies operands for it; None where nothing is copied.
    """

    family: Line
    family_digest: Line
    layout: Line
    configuration: Configuration
    free: tuple[Line, ...]
    calls: tuple[tuple[Whole, ...], ...]
    resident: Resident
    prices: tuple[Price, ...]
    spread: Spread
    measured: Whole
    largest: Products = 0.0
    binary: Sha256 | None = None
    support: Sha256 | None = None

    @property
    def key(self) -> Key:
        """The program's key."""
        return Key(self.family, self.layout, self.configuration)


@dataclass(frozen=True, slots=True)
class Portfolio:
    """The programs for one dtype on one device.

    Attributes:
        operation: what they compute.
        target: where they run.
        fingerprint: of the device.
        dtype: element type of the operands.
        out_dtype: element type of the results.
        accuracy: class of the results.
        threads: the cap that they were measured under; None for all there are.
        architecture: what the binaries run on: "sm_90"; empty where none are kept.
        toolchain: what they were compiled and run with.
        entries: the programs.
        families: prices per volume of each family that was measured, by its name: what is
            expected of programs that were not.
        shapes: problems that they were measured on.
        loss: how much slower the best of them is than the best of all that was measured, as a
            geometric mean over those problems: 0.03 is 3%.
        created: when, in UTC.
    """

    operation: Line
    target: Line
    fingerprint: DeviceFingerprint
    dtype: Line
    out_dtype: Line
    accuracy: Line
    threads: Threads | None
    architecture: AnyLine
    toolchain: Texts
    entries: tuple[Entry, ...]
    families: Mapping[Line, tuple[Price, ...]]
    shapes: Whole
    loss: Loss
    created: Line


def check_entry(entry: Entry, family: KernelFamily) -> None:
    """Make sure that a program, which may be a stranger's, is one of a family.

    Raises:
        SpaceError: its configuration, or one of its calls, is none of the family's, or others of
            the family's parameters are free.
    """
    family.conform(entry.configuration)
    free = family.free_parameters
    if entry.free != free:
        raise SpaceError(
            f"free parameters of family {family.name!r} are {', '.join(free) or 'none'}, got "
            f"{shown(list(entry.free))}"
        )
    known = {each.name: each for each in family.parameters}
    for call in entry.calls:
        if any(
            known[name].position(value) is None for name, value in zip(free, call, strict=True)
        ):
            raise SpaceError(f"family {family.name!r} has no call with {shown(list(call))}")


_LEAST = np.array([1, 1, 1, 1, 0, 0, 0])
"""Least values of the expressions in [work]: the first count, the others are flags."""

_FEW = 16
"""Calls that are counted one by one, which is faster than to set out columns of them."""

_THREADS = "threads"
"""The parameter of a family that says how many CPU threads a program has."""


class Units:
    """The units of one program, whatever its free parameters are.

    Free are the parameters that are passed at the call and that [work] names.

    Args:
        family: the program's family.
        configuration: a value for each of its parameters.
        dtype: element type of the operands.
        limits: of the device.

    Raises:
        SpaceError: the family has no [work], or the configuration is not one of its own.
    """

    def __init__(
        self,
        family: KernelFamily,
        configuration: Mapping[str, Value],
        dtype: str,
        limits: DeviceLimits,
    ) -> None:
        if family.work is None:
            raise SpaceError(f"family {family.name!r} has no [work]: no model speaks of it")
        self._family = family
        self._work = family.work
        self._dtype = dtype
        self._limits: Any = limits
        self._configuration = family.conform(configuration)
        self._values = dict(self._configuration.items())
        self._free = _choices(family)
        self._base = self._columns([next(zip(*self._free.values(), strict=False), ())])[0, :3]

    def resident(self, registers: int | None = None, shared_bytes: int | None = None) -> float:
        """Units that a multiprocessor holds at a time; 1 where there is none.

        Of clusters it holds as much as it has of their blocks.

        Args:
            registers: of a thread, as compiled; None takes the family's estimate.
            shared_bytes: of a block, as compiled; None takes the family's.
        """
        if not isinstance(self._limits, GpuLimits):
            return 1
        held = blocks_per_multiprocessor(
            self._limits,
            threads=int(self._known["threads"]),
            registers=int(self._known["registers"] if registers is None else registers),
            shared_bytes=int(
                self._known["shared_bytes"] if shared_bytes is None else shared_bytes
            ),
        )
        blocks, idle = (
            float(each.evaluate(self._known)) for each in (self._work.blocks, self._work.idle)
        )
        return max(1, held) / blocks * (1 - idle / self._limits.multiprocessor_count)

    def of(self, configuration: Mapping[str, Value]) -> Unit:
        """The work tile of the program.

        Args:
            configuration: the program's, with other values of free parameters or not.

        Raises:
            SpaceError: [work] has no whole numbers for it, of at least 1 where it counts.
        """
        *counts, volume, area = self._table([[configuration[name] for name in self._free]])[0]
        rows, columns, steps, parts, in_block, copied, share = map(int, counts)
        tile = rows, columns, steps
        return Unit(tile, parts, bool(in_block), bool(copied), share, volume, area)

    def variants(
        self, calls: Sequence[tuple[int, ...]] = ()
    ) -> tuple[list[Configuration], NDArray[np.float64]]:
        """The program with every choice of its free parameters, and its units, a row for each.

        Args:
            calls: the choices that are wanted; none takes all.

        Raises:
            SpaceError: [work] has no whole numbers for one of them.
        """
        choices = list(calls or itertools.product(*self._free.values()))
        configurations = [
            Configuration({**self._values, **dict(zip(self._free, each, strict=True))})
            for each in choices
        ]
        return configurations, self._table(choices)

    @functools.cached_property
    def _known(self) -> dict[str, Value]:
        return self._family.constants(self._configuration, self._dtype, self._limits)

    def _table(self, choices: Sequence[Sequence[Value]]) -> NDArray[np.float64]:
        """A row for each choice of the free parameters; see `autotune.model.terms.UNIT`."""
        found = self._columns(choices)
        relative = found[:, :3] / self._base
        return np.column_stack([found, relative.prod(axis=1), relative[:, :2].prod(axis=1)])

    def _columns(self, choices: Sequence[Sequence[Value]]) -> NDArray[np.float64]:
        """The values of the expressions in [work]."""
        table = np.empty((len(choices), len(_LEAST)))
        try:
            if len(choices) > _FEW:
                raise UndecidedError
            work = _compiled_work(self._family, self._dtype, self._limits)
            for row, choice in enumerate(choices):
                values = {**self._values, **dict(zip(self._free, choice, strict=True))}
                table[row] = work(*values.values())[0]
        except UndecidedError:
            free = {
                name: np.array([each[place] for each in choices])
                for place, name in enumerate(self._free)
            }
            names: dict[str, Any] = {**self._known, **free}
            for place, expression in enumerate(self._work.expressions):
                table[:, place] = expression.evaluate_columns(names)[0]
        wrong = ~(np.isfinite(table) & (table >= _LEAST) & (table % 1 == 0)).all(axis=0)
        if wrong.any():
            place = int(wrong.argmax())
            raise SpaceError(
                f"family {self._family.name!r}: {self._work.expressions[place].text} in [work] "
                f"must be a whole number >= {_LEAST[place]} for {UNIT[place]}"
            )
        return table


@functools.lru_cache(maxsize=256)
def _compiled_work(family: KernelFamily, dtype: str, limits: DeviceLimits) -> Callable[..., Any]:
    """Gives the values of [work] for a value of each parameter."""
    assert family.work is not None
    known: dict[str, Value] = {**limits.names(), **element_sizes(dtype)}
    names = {*known, *[each.name for each in family.parameters]}
    derived = {}
    for name, expression in family.derived.items():
        if names.issuperset(expression.ordered_names):
            derived[name] = expression
            names.add(name)
    return compiled((), known, derived, (), [Group(family.work.expressions)], family.parameters)


def is_modelled(family: KernelFamily, problem: Gemm) -> bool:
    """Return whether a survey may try a family's programs for a problem.

    They must say what they do, and read the operands as they are stored: prices of programs are
    learned for each layout, and those of copies belong to none of them.
    """
    known = family.work is not None and problem.layout in family.layouts
    return known and family.unsupported(problem) is None


def program_of(family: KernelFamily, configuration: Mapping[str, Value]) -> Configuration:
    """The same for all configurations that differ in free parameters only: those are lowest."""
    lowest = {name: values[0] for name, values in _choices(family).items()}
    return Configuration({**configuration, **lowest})


def threads_of(configuration: Mapping[str, Value]) -> int:
    """CPU threads of a program; 1 where that is no parameter."""
    threads = configuration.get(_THREADS)
    return threads if isinstance(threads, int) else 1


def on_all_threads(
    family: KernelFamily, configuration: Configuration, limits: DeviceLimits
) -> Configuration:
    """The same on as many CPU threads as a device has; unchanged where that is no parameter."""
    most = limits.names().get("max_threads", 1)
    for each in family.parameters:
        if each.name == _THREADS:
            able = [value for value in each.values if isinstance(value, int) and value <= most]
            return Configuration({**configuration, _THREADS: max(able, default=1)})
    return configuration


def rate_of(family: KernelFamily, limits: DeviceLimits) -> float:
    """Products that a family's units do in the time of one for each thread."""
    return 1.0 if family.work is None else float(family.work.rate.evaluate(limits.names()))


def chip_of(limits: DeviceLimits) -> Chip:
    """The figures of a device that terms are counted with."""
    names = limits.names()
    if "multiprocessor_count" in names:
        return Chip(int(names["multiprocessor_count"]))
    near = int(names.get("l2_bytes", 0))
    return Chip(1, near, int(names.get("l3_bytes", 0)) or near)


def _choices(family: KernelFamily) -> dict[str, tuple[Value, ...]]:
    return {e.name: e.values for e in family.parameters if e.name in family.free_parameters}
