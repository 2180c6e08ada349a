"""A family bound to one configuration: what its expressions are, at whatever sizes.

Programs are verified at many sizes, and kernels of ranks and GPUs meet many. What depends on the
configuration and the device alone is evaluated once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.core.errors import SpaceError
from autotune.operations.problem import element_sizes
from autotune.space import UndefinedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.core.configuration import Value
    from autotune.core.device import DeviceLimits
    from autotune.families.family import KernelFamily
    from autotune.operations.problem import Problem
    from autotune.space import Expression


class Bound:
    """A family's expressions for one configuration, one device and one element type.

    Args:
        family: the configuration's family.
        configuration: a value for each of its parameters.
        problem: any that it is to serve; the others differ from it in their sizes alone.
        limits: of the device.

    Raises:
        SpaceError: the configuration is not one of the family's, or a derived name that depends
            on no size has no value.

    Attributes:
        family: the same.
        configuration: the same, with the family's own values.
    """

    def __init__(
        self,
        family: KernelFamily,
        configuration: Mapping[str, Value],
        problem: Problem,
        limits: DeviceLimits,
    ) -> None:
        self.family = family
        self.configuration = family.conform(configuration)
        fixed = element_sizes(problem.dtype)
        known: dict[str, Value] = {**limits.names(), **self.configuration, **fixed}
        self._constants = known
        self._derived: list[str] = []
        varying = problem.sizes.keys() - fixed.keys()
        for name, expression in family.derived.items():
            if expression.names & varying:
                varying.add(name)
                self._derived.append(name)
            else:
                family.derive(name, known, self.configuration)
        self._restrictions = [
            each.expression for each in family.restrictions if each.expression.names & varying
        ]
        self._fits = all(
            each.expression.holds(known)
            for each in family.restrictions
            if not each.expression.names & varying
        )
        self._varying = frozenset(varying)
        self._evaluated: dict[int, Value | None] = {}

    @property
    def constants(self) -> Mapping[str, Value]:
        """Limits, parameters, and derived names that depend on no size."""
        return self._constants

    @property
    def runtime(self) -> tuple[int, ...]:
        """Values of the parameters that are passed at the call."""
        return tuple(int(self.configuration[name]) for name in self.family.runtime_parameters)

    def at(self, problem: Problem) -> Point:
        """Everything that expressions use, for one problem.

        Raises:
            SpaceError: a division in a derived name is not whole.
        """
        known = {**self._constants, **problem.sizes}
        for name in self._derived:
            self.family.derive(name, known, self.configuration)
        return Point(self, problem, known)

    def holds(self, known: Mapping[str, Value]) -> bool:
        """Whether every restriction does, where `known` is what `at` gives."""
        return self._fits and all(each.holds(known) for each in self._restrictions)

    def evaluate(self, expression: Expression, known: Mapping[str, Value]) -> Value:
        """The value of one of the family's expressions, where `known` is what `at` gives.

        Raises:
            UndefinedError: it has none.
        """
        # The family holds its expressions, so that no other one gets the number of one of them.
        key = id(expression)
        if key not in self._evaluated:
            varies = bool(expression.names & self._varying)
            self._evaluated[key] = None if varies else expression.evaluate(known)
        value = self._evaluated[key]
        return expression.evaluate(known) if value is None else value


@dataclass(frozen=True, slots=True)
class Point:
    """A configuration at the sizes of one problem.

    Attributes:
        bound: the configuration.
        problem: the problem.
        known: sizes, limits, parameters and derived names.
    """

    bound: Bound
    problem: Problem
    known: Mapping[str, Value]

    @property
    def valid(self) -> bool:
        """Whether it meets every restriction."""
        return self.bound.holds(self.known)

    def whole(self, expression: Expression, least: int, lack: str) -> int:
        """The value of an expression.

        Args:
            expression: one of the family's.
            least: what it must not be below.
            lack: what is not to be had otherwise: "cannot be launched".

        Raises:
            SpaceError: it has none, or is not a whole number, or is less.
        """
        where = f"family {self.bound.family.name!r} {lack} for {self.problem.label}"
        try:
            value = self.bound.evaluate(expression, self.known)
        except UndefinedError as error:
            raise SpaceError(f"{where}: {error}") from error
        if value != int(value) or value < least:
            raise SpaceError(
                f"{where}: {expression.text} must be a whole number >= {least}, is {value}"
            )
        return int(value)
