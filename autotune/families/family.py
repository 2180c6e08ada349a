"""Kernel families: one template, one search space, and what they promise."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autotune.core.configuration import Configuration, Value
from autotune.core.device import DeviceLimits
from autotune.core.errors import SpaceError
from autotune.core.limits import CpuLimits, CudaLimits, HybridLimits, MpiLimits
from autotune.core.printable import shown
from autotune.operations.operation import Operation
from autotune.operations.problem import GEMM, Problem, admits
from autotune.space import Expression, Restriction, SearchSpace, TunableParameter, UndefinedError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from autotune.core.facts import Stamp

_CUDA_NAMES = frozenset(field.name for field in dataclasses.fields(CudaLimits))

LIMIT_NAMES: Mapping[str, frozenset[str]] = {
    "cpu": frozenset(field.name for field in dataclasses.fields(CpuLimits)),
    "cuda": _CUDA_NAMES,
    "numba-cuda": _CUDA_NAMES,
    "mpi": frozenset(field.name for field in dataclasses.fields(MpiLimits)),
    "hybrid": frozenset(field.name for field in dataclasses.fields(HybridLimits)),
}
"""Device limits that a family's expressions may use, by target: the targets there are."""


GPU_TARGETS: frozenset[str] = frozenset({"cuda", "numba-cuda"})
"""Targets whose families say how they are launched and what one block needs."""


@dataclass(frozen=True, slots=True)
class AuxiliaryKernel:
    """A further kernel of the same source, run with the main one's arguments.

    It uses no dynamic shared memory.

    Attributes:
        kernel: its name in the source.
        when: where this is false it is not run.
        grid: thread blocks along x, y and z.
        block: threads per block along x, y and z.
    """

    kernel: str
    when: Expression
    grid: tuple[Expression, ...]
    block: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """How a GPU kernel is launched; every division in it must be whole.

    Attributes:
        grid: thread blocks along x, y and z.
        block: threads per block along x, y and z.
        shared_bytes: dynamic shared memory of one block.
        resident_blocks: the least number of blocks that must fit a multiprocessor at once.
        workspace_bytes: device memory that the kernels are given as their last argument; None
            means that they take no such argument.
        before: kernels run before the main one, in this order.
        after: kernels run after it.
    """

    grid: tuple[Expression, ...]
    block: tuple[Expression, ...]
    shared_bytes: Expression
    resident_blocks: Expression
    workspace_bytes: Expression | None
    before: tuple[AuxiliaryKernel, ...]
    after: tuple[AuxiliaryKernel, ...]


@dataclass(frozen=True, slots=True)
class Preset:
    """A configuration with a name: a known-good one, or a rung of a ladder.

    Attributes:
        name: what users call it.
        summary: one line for listings.
        configuration: a value for every parameter; it need not be valid for every problem.
        stated: the parameters that it is about; the others have their declared defaults.
    """

    name: str
    summary: str
    configuration: Configuration
    stated: frozenset[str]

    def placed(self, space: SearchSpace) -> Configuration:
        """The nearest valid configuration that is what the preset states; as declared if none."""
        row = space.nearest(self.configuration)
        if row is not None and all(
            space[row][name] == self.configuration[name] for name in self.stated
        ):
            return space[row]
        return self.configuration


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
        presets: configurations with names, in the order of the file.
        defined: the operation.
        files: its family file, the fragments it includes and the operation's file.
        template_files: the template and every partial it includes, as they were when digested.
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
    presets: Mapping[str, Preset] = field(default_factory=dict)
    defined: Operation = GEMM
    files: tuple[Path, ...] = ()
    template_files: tuple[Stamp, ...] = ()

    @property
    def runtime_parameters(self) -> tuple[str, ...]:
        """Names of the parameters that are passed at the call, in the order of the file."""
        return tuple(parameter.name for parameter in self.parameters if parameter.runtime)

    def unsupported(self, problem: Problem) -> str | None:
        """Why this family cannot serve `problem`, or None if it can."""
        if problem.operation != self.operation:
            return f"{self.name} computes {self.operation}, not {problem.operation}"
        if problem.defined.result != self.defined.result:
            formulas = (each.result.text for each in (self.defined, problem.defined))
            return f"{self.name} computes {', not '.join(formulas)}"
        if problem.defined.arguments != self.defined.arguments:
            return f"{self.name} takes other operands than {problem.operation} has here"
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

    def values(
        self, configuration: Mapping[str, Value], problem: Problem, limits: DeviceLimits
    ) -> dict[str, Value]:
        """Every name that launches and restrictions use: sizes, limits, parameters, derived names.

        Raises:
            SpaceError: the configuration is not one of this family's, or a division in a derived
                name is not whole.
        """
        known = {**problem.sizes, **limits.names(), **self.conform(configuration)}
        for name, expression in self.derived.items():
            try:
                known[name] = expression.evaluate(known)
            except UndefinedError as error:
                raise SpaceError(
                    f"family {self.name!r} has no {name} for {Configuration(configuration)}: "
                    f"{error}"
                ) from error
        return known

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
                    f"family {self.name!r} takes {', '.join(names)}; {shown(name)} is {state}"
                )
        chosen: dict[str, Value] = {}
        for parameter in self.parameters:
            position = parameter.position(values[parameter.name])
            if position is None:
                raise SpaceError(
                    f"{self.name}.{parameter.name} must be one of "
                    f"{', '.join(map(str, parameter.values))}, got {shown(values[parameter.name])}"
                )
            chosen[parameter.name] = parameter.values[position]
        return Configuration(chosen)
