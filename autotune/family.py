"""Kernel families: one template, one search space, and what they promise."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.configuration import Configuration, Value
from autotune.device import CpuLimits, DeviceLimits
from autotune.errors import SpaceError
from autotune.problem import Problem, admits
from autotune.space import Expression, Restriction, SearchSpace, TunableParameter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SIZE_NAMES: frozenset[str] = frozenset({"M", "N", "K", "itemsize"})
"""Problem sizes that every family's expressions may use."""

LIMIT_NAMES: Mapping[str, frozenset[str]] = {
    "cpu": frozenset(field.name for field in dataclasses.fields(CpuLimits)),
}
"""Device limits that a family's expressions may use, by target: the targets there are."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How many threads a GPU kernel is launched with; every division in it must be whole.

    Attributes:
        grid: thread blocks along x, y and z.
        block: threads per block along x, y and z.
        shared_bytes: dynamic shared memory of one block.
    """

    grid: tuple[Expression, ...]
    block: tuple[Expression, ...]
    shared_bytes: Expression


@dataclass(frozen=True, slots=True, eq=False)
class KernelFamily:
    """One algorithm: a template and the space of the parameters it is rendered with.

    Attributes:
        name: what users call it; unique among the families of its operation and target.
        operation: what it computes ("gemm").
        target: what it runs on; a key of `LIMIT_NAMES`.
        template: the template's path relative to one of `template_folders`.
        accuracy: the accuracy class of its results.
        summary: one line for listings.
        dtypes: element types it can be rendered for.
        layouts: operand layouts it reads without a transposing copy.
        parameters: its tunable parameters, in the order of the file.
        derived: named expressions over parameters, sizes, limits and earlier ones; every
            division in them must be whole.
        restrictions: what a configuration must satisfy, each with its reason.
        launch: the launch geometry, where the target has one.
        path: the file it was read from.
        template_folders: where its template and their partials are looked up, first match wins.
        template_digest: sixteen hex digits over the template and every partial it includes.
        digest: sixteen hex digits over the family file and the template digest.
    """

    name: str
    operation: str
    target: str
    template: str
    accuracy: str
    summary: str
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    parameters: tuple[TunableParameter, ...]
    derived: Mapping[str, Expression]
    restrictions: tuple[Restriction, ...]
    launch: Launch | None
    path: Path
    template_folders: tuple[Path, ...]
    template_digest: str
    digest: str

    @property
    def runtime_parameters(self) -> tuple[str, ...]:
        """Names of the parameters that are passed at the call, in the order of the file."""
        return tuple(parameter.name for parameter in self.parameters if parameter.runtime)

    def unsupported(self, problem: Problem) -> str | None:
        """Why this family cannot serve `problem`, or None if it can."""
        if problem.operation != self.operation:
            return f"{self.name} computes {self.operation}, not {problem.operation}"
        if problem.dtype not in self.dtypes:
            return f"{self.name} handles {', '.join(self.dtypes)}, not {problem.dtype}"
        if problem.out_dtype is not None:
            return f"{self.name} writes {problem.dtype} results, not {problem.out_dtype}"
        if not admits(problem.accuracy, self.accuracy):
            return f"{self.name} has accuracy {self.accuracy}, not {problem.accuracy}"
        return None

    def space(self, problem: Problem, limits: DeviceLimits) -> SearchSpace:
        """The valid configurations for one problem on one device.

        Raises:
            ExpressionError: a restriction mixes text with numbers.
        """
        return SearchSpace(
            self.parameters,
            self.restrictions,
            constants={**problem.sizes, **limits.names()},
            definitions=self.derived,
        )

    def default(self, problem: Problem, limits: DeviceLimits) -> Configuration:
        """The valid configuration nearest to the declared defaults.

        Raises:
            SpaceError: no configuration is valid for this problem on this device.
        """
        space = self.space(problem, limits)
        declared = {p.name: p.default for p in self.parameters if p.default is not None}
        row = space.nearest(declared, excluded=())
        if row is None:
            raise SpaceError(
                f"family {self.name!r} has no valid configuration for {problem.label}: "
                f"`autotune space {self.name}` shows what each restriction removes"
            )
        return space[row]

    def conform(self, values: Mapping[str, Value]) -> Configuration:
        """`values` as a configuration of this family: its names in order, its own values.

        What is rendered ends up in source text that is run, so nothing but a value from the
        family's own file may pass; an equal value of another type (2.0 for 2) becomes that one.

        Raises:
            SpaceError: a parameter is missing or unknown, or its value is not one of its values.
        """
        names = [parameter.name for parameter in self.parameters]
        for name in [*names, *values]:
            if name not in values or name not in names:
                state = "missing" if name in names else "unknown"
                raise SpaceError(
                    f"family {self.name!r} takes {', '.join(names)}; {name!r} is {state}"
                )
        chosen: dict[str, Value] = {}
        for parameter in self.parameters:
            position = parameter.position(values[parameter.name])
            if position is None:
                raise SpaceError(
                    f"{self.name}.{parameter.name} must be one of "
                    f"{', '.join(map(str, parameter.values))}, got {values[parameter.name]!r}"
                )
            chosen[parameter.name] = parameter.values[position]
        return Configuration(chosen)
