"""Launch planning: the kernels that a configuration launches at any sizes, in microseconds.

A family's expressions are compiled to functions of the sizes and of the parameters that are passed
at the call. Where those cannot decide, or give what cannot be launched, the expressions themselves
are evaluated: they know what is wrong.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from autotune.core.configuration import Configuration
from autotune.core.device import DeviceLimits
from autotune.core.dtypes import ELEMENTS
from autotune.core.errors import SpaceError
from autotune.families.gpu.launch import (
    ROW_BYTES,
    LaunchPlan,
    LaunchStep,
    MappedOperand,
    MappedRegion,
    kernel_layout,
)
from autotune.families.parts import SWIZZLES
from autotune.operations.problem import element_sizes
from autotune.space.compiled import Group, UndecidedError, compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autotune.core.configuration import Value
    from autotune.families.family import KernelFamily
    from autotune.families.parts import AuxiliaryKernel, Launch, Region, TensorMap
    from autotune.operations.problem import Problem
    from autotune.space import Expression, TunableParameter

_Function: TypeAlias = "Callable[..., Sequence[tuple[Any, ...] | None] | None]"
"""Of the sizes, and of the parameters that are passed at the call: `compiled` makes it."""

_Whole: TypeAlias = "Callable[[tuple[Expression, ...], tuple[Any, ...], int], tuple[Any, ...]]"
"""Checks numbers that expressions were found to have: whole, and not below a least one."""

_KEPT = 2048
"""Functions that are remembered, at some tens of kilobytes each."""

_NUMBERED = 2**32
"""Threads that kernels before and after the main one may have, which number them in 32 bits."""

_BOX_LIMIT = 256
"""Rows, and columns, of a box."""


class GridLimits(DeviceLimits, Protocol):
    """Limits of a device that launches grids of thread blocks."""

    @property
    def grid_limits(self) -> tuple[int, int, int]:
        """Along x, y and z a grid has fewer blocks than that."""
        ...


class _MisfitError(Exception):
    """Numbers with which hardware launches nothing."""


class Planner:
    """One configuration of a family, on one device, for one element type.

    It plans for other values of the parameters that are passed at the call, too: configurations
    that differ in those alone are one binary, and share their compiled functions. Of a family
    that is not launched it says where the configuration is valid.

    Args:
        family: the configuration's family.
        configuration: a value for each of its parameters.
        dtype: element type of the operands.
        limits: of the device.

    Raises:
        SpaceError: the configuration is not one of the family's.

    Attributes:
        family: the same.
        configuration: the same, with the family's own values.
        fixed: the part of it that is compiled in.
    """

    def __init__(
        self,
        family: KernelFamily,
        configuration: Mapping[str, Value],
        dtype: str,
        limits: DeviceLimits,
    ) -> None:
        self.family = family
        self.configuration = family.conform(configuration)
        self._limits = limits
        names = family.runtime_parameters
        self.fixed = Configuration(
            {name: value for name, value in self.configuration.items() if name not in names}
        )
        self._key: tuple[Any, ...] = family, self.fixed, dtype, limits
        self._runtime = tuple(int(self.configuration[name]) for name in names)
        self._allowed = [frozenset(each.values) for each in family.parameters if each.runtime]

    def valid(self, problem: Problem, runtime: tuple[int, ...] | None = None) -> bool:
        """Return whether the configuration may serve a problem.

        Args:
            problem: of the family's operation, and of the planner's element type.
            runtime: values of the parameters that are passed at the call, in the family's order;
                None takes those of the configuration.
        """
        try:
            arguments = self._arguments(problem, runtime)
            return self._valid(*arguments, *self.fixed.values()) is not None
        except UndecidedError:
            try:
                return self._holds(self._values(problem, runtime))
            except SpaceError:
                return False

    def find(self, problem: Problem, runtime: tuple[int, ...] | None = None) -> LaunchPlan | None:
        """The launch for a problem; None where the configuration is not valid.

        Arguments are those of `valid`.
        """
        try:
            return self._plan(problem, runtime, valid=True)
        except SpaceError:
            return None

    def plan(self, problem: Problem, runtime: tuple[int, ...] | None = None) -> LaunchPlan:
        """The launch for a problem, valid or not.

        Arguments are those of `valid`.

        Raises:
            SpaceError: its launch is not whole or not positive for these sizes, or a value is none
                of the parameter's.
        """
        found = self._plan(problem, runtime, valid=False)
        assert found is not None
        return found

    def resident_blocks(self, problem: Problem) -> int:
        """The least number of blocks that must fit a multiprocessor at once."""
        return int(self._launch.resident_blocks.evaluate(self._values(problem, None)))

    @functools.cached_property
    def _valid(self) -> _Function:
        family, _, dtype, limits = self._key
        return _validity(family, dtype, limits)

    @functools.cached_property
    def _launches(self) -> _Function:
        return _launches(*self._key)

    @property
    def _launch(self) -> Launch:
        if self.family.launch is None:
            raise SpaceError(
                f"family {self.family.name!r} has no [launch]: it is not for this target"
            )
        return self.family.launch

    def _arguments(self, problem: Problem, runtime: tuple[int, ...] | None) -> tuple[int, ...]:
        """Arguments of the compiled functions."""
        if runtime is None:
            return (*problem.shape, *self._runtime)
        if len(runtime) != len(self._allowed) or not all(
            map(operator.contains, self._allowed, runtime)
        ):
            raise UndecidedError
        return (*problem.shape, *runtime)

    def _values(self, problem: Problem, runtime: tuple[int, ...] | None) -> Mapping[str, Value]:
        """Every name that the family's expressions use."""
        values = dict(self.configuration)
        if runtime is not None:
            values |= zip(self.family.runtime_parameters, runtime, strict=True)
        return self.family.values(values, problem, self._limits)

    def _holds(self, values: Mapping[str, Value]) -> bool:
        return all(each.expression.holds(values) for each in self.family.restrictions)

    def _plan(
        self, problem: Problem, runtime: tuple[int, ...] | None, *, valid: bool
    ) -> LaunchPlan | None:
        """The launch; None where it has to be `valid` and is not."""
        family, values, numbers = self.family, None, None
        if family.launch is not None:
            try:
                numbers = self._launches(*self._arguments(problem, runtime))
            except UndecidedError:
                pass
            else:
                if valid and numbers is None:
                    return None
        if numbers is None:
            values = self._values(problem, runtime)
            if valid and not self._holds(values):
                return None
            # Not evaluated yet: the first one that is wrong is the one to tell of.
            numbers = [
                None if each.when is not None and not each.when.holds(values) else each.values
                for each in _groups(self._launch)
            ]
        where = f"family {family.name!r} cannot be launched for {problem.label}"

        def whole(
            expressions: tuple[Expression, ...], found: tuple[Any, ...], least: int
        ) -> tuple[Any, ...]:
            nonlocal values
            if {*map(type, found)} <= {int} and min(found, default=least) >= least:
                return found
            if values is None:
                values = self._values(problem, runtime)
            return tuple(family.whole(each, values, least, where) for each in expressions)

        try:
            return self._assemble(problem, runtime, numbers, whole)
        except _MisfitError as error:
            raise SpaceError(f"{where}: {error}") from None

    def _assemble(
        self,
        problem: Problem,
        runtime: tuple[int, ...] | None,
        numbers: Sequence[tuple[Any, ...] | None],
        whole: _Whole,
    ) -> LaunchPlan:
        launch = self._launch
        main, memory, *others = numbers
        assert main is not None  # it is always launched
        assert memory is not None
        extents = whole((*launch.grid, *launch.block), main[:6], 1)
        (shared,) = whole((launch.shared_bytes,), main[6:7], 0)
        (waits,) = whole((launch.dependent,), main[10:], 0)
        dependent = waits > 0
        step = LaunchStep(
            self.family.operation,
            extents[:3],
            extents[3:],
            shared,
            whole(launch.cluster, main[7:10], 1),
            dependent,
            launch.cooperative,
        )
        self._check(step)
        workspace, zeroed = whole(_memory(launch), memory, 0) or (None, 0)
        if zeroed > (workspace or 0) or zeroed % 4 != 0:
            raise _MisfitError(
                "zeroed_bytes must be whole words of 4 bytes within the workspace of "
                f"{workspace or 0} bytes, got {zeroed}"
            )
        before = len(launch.before)
        kernels = (*launch.before, *launch.after)
        steps = [
            None if found is None else self._auxiliary(kernel, found, whole, dependent)
            for kernel, found in zip(kernels, others, strict=False)
        ]
        return LaunchPlan(
            sizes=problem.shape,
            steps=tuple(each for each in (*steps[:before], step, *steps[before:]) if each),
            workspace_bytes=workspace,
            runtime=self._runtime if runtime is None else runtime,
            zeroed_bytes=zeroed,
            maps=tuple(
                self._mapped(problem, tensor_map, found, whole, workspace or 0)
                for tensor_map, found in zip(
                    launch.tensor_maps, others[len(kernels) :], strict=True
                )
                if found is not None
            ),
        )

    def _auxiliary(
        self, kernel: AuxiliaryKernel, found: tuple[Any, ...], whole: _Whole, dependent: bool
    ) -> LaunchStep:
        extents = whole((*kernel.grid, *kernel.block), found[:6], 1)
        (shared,) = whole((kernel.shared_bytes,), found[6:], 0)
        step = LaunchStep(kernel.kernel, extents[:3], extents[3:], shared, dependent=dependent)
        self._check(step)
        if extents[0] * extents[3] > _NUMBERED:
            raise _MisfitError(
                f"{kernel.kernel} numbers its threads in 32 bits, and would have more"
            )
        return step

    def _check(self, step: LaunchStep) -> None:
        limits = cast("GridLimits", self._limits).grid_limits
        if any(map(operator.ge, step.grid, limits)):
            blocks = " x ".join(map(str, step.grid))
            most = " x ".join(f"2^{limit.bit_length() - 1}" for limit in limits)
            raise _MisfitError(f"a grid has fewer than {most} blocks, and {step.kernel} {blocks}")

    def _mapped(
        self,
        problem: Problem,
        tensor_map: TensorMap,
        found: tuple[Any, ...],
        whole: _Whole,
        workspace: int,
    ) -> MappedOperand:
        """The matrix of a tensor map.

        The rules are those of ``cuTensorMapEncodeTiled`` (CUDA driver API, "Tensor Map Object
        Management").
        """
        # Layouts are of the two factors of a product; other matrices are stored as they are named.
        layout = dict(zip("AB", kernel_layout(self.family, problem.layout), strict=True))
        transposed = layout.get(tensor_map.operand) == "t"
        stored, place = tensor_map.stored_box(transposed=transposed), found[len(found) - 4 :]
        first = 2 if stored is tensor_map.transposed_box else 0
        rows, columns = whole(stored, found[first : first + 2], 1)
        at = 2 if tensor_map.transposed_box is None else 4
        (swizzle,) = whole((tensor_map.swizzle,), found[at : at + 1], 0)
        if swizzle not in SWIZZLES:
            allowed = ", ".join(map(str, SWIZZLES))
            raise _MisfitError(
                f"the swizzle of {tensor_map.operand} must be one of {allowed}, is {swizzle}"
            )
        region = None
        if tensor_map.region is not None:
            region = self._region(tensor_map.region, place, whole, workspace)
        dtype = problem.dtype if region is None else region.dtype
        itemsize = ELEMENTS[dtype].itemsize
        row_bytes = columns * itemsize
        if self._writes(tensor_map.operand):
            row_bytes = columns
            columns //= ELEMENTS[problem.result_dtype].itemsize
        longest = swizzle or row_bytes
        if max(rows, columns) > _BOX_LIMIT or row_bytes % ROW_BYTES or row_bytes > longest:
            raise _MisfitError(
                f"a box of {tensor_map.operand} must have {_BOX_LIMIT} rows and columns at most, "
                f"and rows of whole {ROW_BYTES} bytes"
                + (f" within swizzled ones of {swizzle}" if swizzle else "")
                + f"; it has {rows} rows of {row_bytes} bytes"
            )
        return MappedOperand(
            tensor_map.operand,
            transposed,
            (rows, columns),
            swizzle,
            tensor_map.rounded,
            region,
        )

    def _region(
        self, region: Region, found: tuple[Any, ...], whole: _Whole, workspace: int
    ) -> MappedRegion:
        (offset,) = whole((region.offset,), found[:1], 0)
        sizes = (region.rows, region.columns, region.leading)
        rows, columns, leading = whole(sizes, found[1:], 1)
        itemsize = ELEMENTS[region.dtype].itemsize
        end = offset + ((rows - 1) * leading + columns) * itemsize
        if offset % ROW_BYTES or leading * itemsize % ROW_BYTES or columns > leading:
            raise _MisfitError(
                f"a region of the workspace must begin, and its rows must lie, whole {ROW_BYTES} "
                f"bytes apart; one of {rows} x {columns} {region.dtype} begins at {offset}, with "
                f"{leading} elements from one row to the next"
            )
        if end > workspace:
            raise _MisfitError(
                f"a region of {rows} x {columns} {region.dtype} must end within the workspace of "
                f"{workspace} bytes, and ends at {end}"
            )
        return MappedRegion(region.dtype, offset, rows, columns, leading)

    def _writes(self, operand: str) -> bool:
        return any(each.written for each in self.family.defined.operands if each.name == operand)


def planner_of(
    family: KernelFamily, configuration: Configuration, dtype: str, limits: DeviceLimits
) -> Planner:
    """The planner of a configuration, made once; arguments and errors are those of `Planner`."""
    key: Any = limits
    return _planner(family, configuration, dtype, key)


_planner = functools.lru_cache(maxsize=_KEPT)(Planner)


@functools.lru_cache(maxsize=_KEPT)
def _validity(family: KernelFamily, dtype: str, limits: DeviceLimits) -> _Function:
    """Gives None where a configuration is not valid.

    Arguments are sizes, parameters that are passed at the call, and the others.
    """
    fixed = [each for each in family.parameters if not each.runtime]
    return _compile(family, {}, dtype, limits, (), fixed)


@functools.lru_cache(maxsize=_KEPT)
def _launches(
    family: KernelFamily, fixed: Configuration, dtype: str, limits: DeviceLimits
) -> _Function:
    """Gives the numbers of a launch, as `_groups` has them; None where nothing is valid."""
    assert family.launch is not None
    return _compile(family, fixed, dtype, limits, _groups(family.launch))


def _groups(launch: Launch) -> list[Group]:
    """The expressions of the main kernel, of memory, of further kernels and of tensor maps."""
    return [
        Group(
            (*launch.grid, *launch.block, launch.shared_bytes, *launch.cluster, launch.dependent)
        ),
        Group(_memory(launch)),
        *(
            Group((*each.grid, *each.block, each.shared_bytes), each.when)
            for each in (*launch.before, *launch.after)
        ),
        *(Group(each.expressions, each.when) for each in launch.tensor_maps),
    ]


def _memory(launch: Launch) -> tuple[Expression, ...]:
    """The bytes of the workspace, and how many of them are zero; nothing where there is none."""
    bytes_ = launch.workspace_bytes
    return () if bytes_ is None else (bytes_, launch.zeroed_bytes)


def _compile(
    family: KernelFamily,
    fixed: Mapping[str, Value],
    dtype: str,
    limits: DeviceLimits,
    groups: Sequence[Group],
    chosen: Sequence[TunableParameter] = (),
) -> _Function:
    return compiled(
        (*family.defined.sizes, *family.runtime_parameters),
        {**limits.names(), **fixed, **element_sizes(dtype)},
        family.derived,
        [each.expression for each in family.restrictions],
        groups,
        chosen,
    )
