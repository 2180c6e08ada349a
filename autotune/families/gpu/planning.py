"""What a configuration launches at any sizes, in microseconds.

`plan_launch` evaluates a family's expressions one by one, and says what is wrong with them. A
`Planner` has them as compiled functions of the sizes and of the parameters that are passed at the
call; where those do not know, it asks there.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeAlias

from autotune.core.configuration import Configuration
from autotune.core.errors import SpaceError
from autotune.families.gpu.bound import Bound
from autotune.families.gpu.launch import (
    LaunchPlan,
    LaunchStep,
    mapped_operand,
    plan_launch,
    stored_maps,
)
from autotune.operations.problem import element_sizes
from autotune.space.compiled import Group, UndecidedError, compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autotune.core.configuration import Value
    from autotune.core.device import DeviceLimits
    from autotune.families.family import KernelFamily
    from autotune.families.gpu.bound import Point
    from autotune.families.gpu.launch import MappedOperand
    from autotune.operations.problem import Problem

_Function: TypeAlias = "Callable[..., Sequence[tuple[Any, ...] | None] | None]"
"""Of the sizes, and of the parameters that are passed at the call: `compiled` makes it."""

_KEPT = 2048
"""Functions that are remembered, at some tens of kilobytes each."""


class Planner:
    """One configuration of a family, on one device, for one element type.

    It plans for other values of the parameters that are passed at the call, too: configurations
    that differ in those alone are one binary, and share their compiled functions.

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
        fixed: what of it is compiled in.
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
        fixed = {name: each for name, each in self.configuration.items() if name not in names}
        self.fixed = Configuration(fixed)
        self._key: tuple[Any, ...] = family, self.fixed, dtype, limits
        self._runtime = tuple(int(self.configuration[name]) for name in names)
        self._allowed = [frozenset(each.values) for each in family.parameters if each.runtime]

    def valid(self, problem: Problem, runtime: tuple[int, ...] | None = None) -> bool:
        """Whether the configuration may serve a problem.

        Args:
            problem: of the family's operation, and of the planner's element type.
            runtime: values of the parameters that are passed at the call, in the family's order;
                None takes those of the configuration.
        """
        try:
            return self._valid(*self._arguments(problem, runtime)) is not None
        except UndecidedError:
            return self._valid_point(problem, runtime) is not None

    def find(self, problem: Problem, runtime: tuple[int, ...] | None = None) -> LaunchPlan | None:
        """What the configuration launches for a problem; None where it is not valid.

        Arguments are those of `valid`.
        """
        try:
            return self._planned(problem, runtime)
        except UndecidedError:
            point = self._valid_point(problem, runtime)
        try:
            return None if point is None else plan_launch(point)
        except SpaceError:
            return None

    def plan(self, problem: Problem, runtime: tuple[int, ...] | None = None) -> LaunchPlan:
        """What the configuration launches for a problem, valid or not.

        Arguments are those of `valid`.

        Raises:
            SpaceError: its launch is not whole or not positive for these sizes, or a value is none
                of the parameter's.
        """
        try:
            found = self._planned(problem, runtime)
        except UndecidedError:
            found = None
        return found or plan_launch(self._point(problem, runtime))

    @functools.cached_property
    def _valid(self) -> _Function:
        return _validity(*self._key)

    @functools.cached_property
    def _launches(self) -> _Function:
        return _launches(*self._key)

    def _planned(self, problem: Problem, runtime: tuple[int, ...] | None) -> LaunchPlan | None:
        """What is launched; None where that is not valid.

        Raises:
            UndecidedError: the compiled functions do not know.
        """
        launch = self.family.launch
        if launch is None:
            raise UndecidedError
        groups = self._launches(*self._arguments(problem, runtime))
        if groups is None:
            return None
        main, *others = groups
        assert main is not None  # it is always launched
        further = (*launch.before, *launch.after)
        auxiliary = [
            None if numbers is None else _step(each.kernel, numbers, main=False)
            for each, numbers in zip(further, others[: len(further)], strict=True)
        ]
        workspace, zeroed = main[10:] or (None, 0)
        if zeroed > (workspace or 0) or zeroed % 4 != 0:
            raise UndecidedError
        count = len(launch.before)
        steps = (
            *auxiliary[:count],
            _step(self.family.operation, main, main=True),
            *auxiliary[count:],
        )
        return LaunchPlan(
            sizes=problem.shape,
            steps=tuple(filter(None, steps)),
            workspace_bytes=workspace,
            runtime=self._runtime if runtime is None else runtime,
            zeroed_bytes=zeroed,
            maps=self._maps(problem, others[len(further) :]),
        )

    def _maps(
        self, problem: Problem, boxes: Sequence[tuple[Any, ...] | None]
    ) -> tuple[MappedOperand, ...]:
        """Operands of which there are tensor maps.

        Raises:
            UndecidedError: their boxes are none that hardware copies.
        """
        made = []
        for (each, transposed), both in zip(stored_maps(self.family, problem), boxes, strict=True):
            if both is None:
                continue
            rows, columns = both[2:] if transposed and each.transposed_box else both[:2]
            if {type(rows), type(columns)} != {int} or min(rows, columns) < 1:
                raise UndecidedError
            try:
                box = rows, columns
                made.append(mapped_operand(self.family, problem, each, transposed, box))
            except SpaceError as error:
                raise UndecidedError from error
        return tuple(made)

    def _arguments(self, problem: Problem, runtime: tuple[int, ...] | None) -> tuple[int, ...]:
        """What compiled functions are called with."""
        if runtime is None:
            return (*problem.shape, *self._runtime)
        if len(runtime) != len(self._allowed) or not all(map(_contains, self._allowed, runtime)):
            raise UndecidedError
        return (*problem.shape, *runtime)

    def _point(self, problem: Problem, runtime: tuple[int, ...] | None) -> Point:
        """The expressions themselves, for one problem."""
        family, limits = self.family, self._limits
        values = dict(self.configuration)
        if runtime is not None:
            values |= zip(family.runtime_parameters, runtime, strict=True)
        return Bound(family, values, problem, limits).at(problem)

    def _valid_point(self, problem: Problem, runtime: tuple[int, ...] | None) -> Point | None:
        try:
            point = self._point(problem, runtime)
        except SpaceError:
            return None
        return point if point.valid else None


def planner_of(
    family: KernelFamily, configuration: Configuration, dtype: str, limits: DeviceLimits
) -> Planner:
    """The planner of a configuration, made once; arguments and errors are those of `Planner`."""
    key: Any = limits
    return _planner(family, configuration, dtype, key)


_planner = functools.lru_cache(maxsize=_KEPT)(Planner)


def _step(kernel: str, numbers: tuple[Any, ...], *, main: bool) -> LaunchStep:
    """A kernel, and what it is launched with: grid, block, shared memory, cluster, what there is.

    Raises:
        UndecidedError: they are not all whole, not large enough, or too large.
    """
    grid, block, memory, cluster = numbers[:3], numbers[3:6], numbers[6:7], numbers[7:10]
    whole = {*map(type, numbers)} == {int}
    if not whole or min(*grid, *block, *cluster) < 1 or min((*memory, *numbers[10:], 0)) < 0:
        raise UndecidedError
    step = LaunchStep(kernel, grid, block, *memory, *([cluster] if cluster else []))
    if step.misfit(main=main) is not None:
        raise UndecidedError
    return step


@functools.lru_cache(maxsize=_KEPT)
def _validity(
    family: KernelFamily, fixed: Configuration, dtype: str, limits: DeviceLimits
) -> _Function:
    """Gives None where what is fixed of a configuration is not valid."""
    return _compiled(family, fixed, dtype, limits, ())


@functools.lru_cache(maxsize=_KEPT)
def _launches(
    family: KernelFamily, fixed: Configuration, dtype: str, limits: DeviceLimits
) -> _Function:
    """Gives the numbers of the main kernel, of those before and after it that run, and of maps.

    Of the main kernel those are the grid, the block, shared memory, the cluster, and the workspace
    if it has one, with how much of it is zero; of the others the grid and the block; of a tensor
    map the box, and that of an operand which is stored transposed if it is another one. It gives
    None where nothing is valid.
    """
    launch = family.launch
    assert launch is not None
    workspace = (launch.workspace_bytes, launch.zeroed_bytes) if launch.workspace_bytes else ()
    main = Group((*launch.grid, *launch.block, launch.shared_bytes, *launch.cluster, *workspace))
    auxiliary = (*launch.before, *launch.after)
    others = (Group((*each.grid, *each.block), each.when) for each in auxiliary)
    boxes = (
        Group((*each.box, *(each.transposed_box or ())), each.when) for each in launch.tensor_maps
    )
    return _compiled(family, fixed, dtype, limits, (main, *others, *boxes))


def _compiled(
    family: KernelFamily,
    fixed: Configuration,
    dtype: str,
    limits: DeviceLimits,
    groups: Sequence[Group],
) -> _Function:
    return compiled(
        (*family.defined.sizes, *family.runtime_parameters),
        {**limits.names(), **fixed, **element_sizes(dtype)},
        family.derived,
        [each.expression for each in family.restrictions],
        groups,
    )


def _contains(values: frozenset[Value], value: int) -> bool:
    return value in values
