"""Kernel families: one template, one search space, and what they promise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autotune.core.configuration import Configuration, Value
from autotune.core.device import DeviceLimits
from autotune.core.dtypes import DTYPES
from autotune.core.errors import SpaceError
from autotune.core.printable import shown
from autotune.operations.operation import Operation
from autotune.operations.problem import GEMM, Problem, admits, element_sizes
from autotune.space import Expression, Restriction, SearchSpace, TunableParameter, UndefinedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from autotune.core.facts import Stamp


LARGEST_SIZE = 2**31 - 2**16
"""Of a problem on a GPU: kernels count in 32 bits, up to a tile beyond the last element."""

ONE = Expression.parse("1")


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
class TensorMap:
    """An operand that kernels are given, beside its address, as boxes which hardware copies (TMA).

    Attributes:
        operand: its name.
        box: rows and columns of a box, of the operand as it is stored; rows and bytes of a row
            where the operand is written, whose elements may have one size or another.
        transposed_box: the same where the layout says that it is stored transposed; None where
            that makes no difference.
        swizzle: bytes of the rows within which a box's pieces of 16 bytes are permuted in shared
            memory; 0 leaves them in order.
        rounded: what elements are rounded to on their way ("tf32"); empty for nothing.
        when: where this is false kernels are not given it; it follows from what is compiled in.
    """

    operand: str
    box: tuple[Expression, ...]
    transposed_box: tuple[Expression, ...] | None = None
    swizzle: int = 0
    rounded: str = ""
    when: Expression = ONE

    @property
    def argument(self) -> str:
        """What kernels call it."""
        return f"{self.operand.lower()}_map"

    def stored_box(self, *, transposed: bool) -> tuple[Expression, ...]:
        """Rows and columns of a box where the operand is stored so."""
        return self.transposed_box if transposed and self.transposed_box else self.box


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
        zeroed_bytes: how much of the workspace, from its start on, is zero whenever a call
            begins; kernels leave it zero.
        cluster: thread blocks of a cluster along x, y and z, as the source itself says by
            ``__cluster_dims__``.
        tensor_maps: what kernels are given after all other arguments.
        architecture_features: whether kernels are compiled for the device's very architecture,
            "sm_90a", whose features no other one has.
    """

    grid: tuple[Expression, ...]
    block: tuple[Expression, ...]
    shared_bytes: Expression
    resident_blocks: Expression
    workspace_bytes: Expression | None
    before: tuple[AuxiliaryKernel, ...]
    after: tuple[AuxiliaryKernel, ...]
    zeroed_bytes: Expression
    cluster: tuple[Expression, ...] = (ONE, ONE, ONE)
    tensor_maps: tuple[TensorMap, ...] = ()
    architecture_features: bool = False

    def maps(self, constants: Mapping[str, Value]) -> tuple[TensorMap, ...]:
        """The tensor maps that kernels are given, by what is compiled in."""
        return tuple(each for each in self.tensor_maps if each.when.holds(constants))

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """All of them, those of further kernels and of tensor maps too."""
        further = [
            part
            for each in (*self.before, *self.after)
            for part in (each.when, *each.grid, *each.block)
        ]
        further += [
            part
            for each in self.tensor_maps
            for part in (each.when, *each.box, *(each.transposed_box or ()))
        ]
        workspace = () if self.workspace_bytes is None else (self.workspace_bytes,)
        own = (self.shared_bytes, self.resident_blocks, *workspace, self.zeroed_bytes)
        return (*self.grid, *self.block, *self.cluster, *own, *further)


@dataclass(frozen=True, slots=True)
class Work:
    """How a program divides a product, for the model of its time (`autotune.model`).

    Attributes:
        tile: rows and columns of C and reduction steps of a unit of work: of a thread block on a
            GPU, of a tile in registers on a CPU.
        parts: that the reduction of a tile is divided into, each a unit of its own.
        in_block: 1 where the last unit of a tile adds up its parts, 0 where a kernel of its own
            adds up all.
        copied: 1 where operands whose rows are no whole vectors are copied first.
        share: least reduction steps of a unit where units are as many as the device holds at once
            and divide all steps of all tiles evenly; 0 where every tile has units of its own.
        rate: products in the time of one for each thread, over limits of the device: more than 1
            for tensor cores.
        warp: rows and columns of C for which a warp reads its operands once; None where every
            thread reads those of its own.
    """

    tile: tuple[Expression, Expression, Expression]
    parts: Expression
    in_block: Expression
    copied: Expression
    share: Expression
    rate: Expression
    warp: tuple[Expression, Expression] | None = None

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """How it divides a product: tile, parts, in_block, copied and share."""
        return (*self.tile, self.parts, self.in_block, self.copied, self.share)


@dataclass(frozen=True, slots=True)
class Local:
    """What a rank, or a thread that drives a GPU, multiplies at a time.

    Attributes:
        m: rows of its A and C.
        n: its reduction.
        k: columns of its B and C.
        on: the target whose kernel multiplies.
        threads: that the kernel may use; None for a GPU's, which has none.
    """

    m: Expression
    n: Expression
    k: Expression
    on: str
    threads: Expression | None


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
        target: the name of the target it runs on.
        template: the template's path relative to one of `template_folders`.
        accuracy: the accuracy class of its results.
        summary: one line for listings.
        dtypes: element types it can be rendered for.
        epilogue: whether it computes operations of one's own too that are gemm with an epilogue.
        out_dtypes: element types its results may have beside the operands' own, where those are
            summed in them.
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
        local: the product that its programs leave to another target's kernel, where there is one.
        threads: that a CPU kernel of it uses, over what follows from a configuration alone; None
            is one.
        work: how it divides a product; None where no model speaks of it.
        any_sizes: whether its default configuration is valid for problems of whatever sizes.
        default_for: an expression over sizes and a device's limits, true where its default
            configuration serves what nothing was tuned for; None where it never does.
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
    local: Local | None = None
    threads: Expression | None = None
    work: Work | None = None
    any_sizes: bool = False
    default_for: Expression | None = None
    files: tuple[Path, ...] = ()
    template_files: tuple[Stamp, ...] = ()
    out_dtypes: tuple[str, ...] = ()
    epilogue: bool = False

    @property
    def adopted(self) -> bool:
        """Whether it is one of gemm's, as it computes another operation with an epilogue."""
        return self.epilogue and self.operation != GEMM.name

    @property
    def runtime_parameters(self) -> tuple[str, ...]:
        """Names of the parameters that are passed at the call, in the order of the file."""
        return tuple(parameter.name for parameter in self.parameters if parameter.runtime)

    def results(self, dtype: str) -> tuple[str, ...]:
        """The element types that results of operands of a dtype may have, their own first."""
        own, sums = DTYPES[dtype].result, DTYPES[dtype].accumulation
        return (own, sums) if sums != own and sums in self.out_dtypes else (own,)

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
        results = self.results(problem.dtype)
        if problem.out_dtype not in (None, *results):
            return f"{self.name} writes {' or '.join(results)} results, not {problem.out_dtype}"
        if not admits(problem.accuracy, self.accuracy):
            return f"{self.name} has accuracy {self.accuracy}, not {problem.accuracy}"
        if self.launch is not None and max(problem.shape) > LARGEST_SIZE:
            largest = max(problem.shape)
            return f"{self.name} counts in 32 bits: sizes up to {LARGEST_SIZE}, not {largest}"
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
                f"family {self.name!r} has no valid configuration for {problem.label} here: "
                f"`autotune space {self.name}`, with --families, --shape, --dtype and whatever "
                "else was given, shows what each restriction removes"
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
        conformed = self.conform(configuration)
        known = {**problem.sizes, **limits.names(), **conformed}
        for name in self.derived:
            self.derive(name, known, conformed)
        return known

    def constants(self, configuration: Mapping[str, Value], dtype: str) -> dict[str, Value]:
        """What follows from a configuration alone: parameters, `element_sizes`, and derived names.

        Raises:
            SpaceError: a division in a derived name is not whole.
        """
        known: dict[str, Value] = {**configuration, **element_sizes(dtype)}
        for name, expression in self.derived.items():
            if expression.names <= known.keys():
                self.derive(name, known, configuration)
        return known

    def derived_for(self, names: Iterable[str]) -> frozenset[str]:
        """The derived names that some names stand for, directly or through others."""
        found: set[str] = set()
        waiting = [*names]
        while waiting:
            name = waiting.pop()
            if name in self.derived and name not in found:
                found.add(name)
                waiting += self.derived[name].names
        return frozenset(found)

    def derive(
        self, name: str, known: dict[str, Value], configuration: Mapping[str, Value]
    ) -> None:
        """Add a derived name to the names that are known.

        Raises:
            SpaceError: a division in it is not whole.
        """
        try:
            known[name] = self.derived[name].evaluate(known)
        except UndefinedError as error:
            raise SpaceError(
                f"family {self.name!r} has no {name} for {Configuration(configuration)}: {error}"
            ) from error

    def thread_count(self, configuration: Mapping[str, Value], dtype: str) -> int:
        """How many threads a CPU kernel of this family uses.

        Raises:
            SpaceError: a parameter is missing, or the count is no whole number >= 1.
        """
        if self.threads is None:
            return 1
        known = configuration
        if not self.threads.names <= known.keys():
            known = self.constants(self.conform(configuration), dtype)
        try:
            value = self.threads.evaluate(known)
        except UndefinedError as error:
            raise SpaceError(
                f"family {self.name!r} has no threads for {configuration}: {error}"
            ) from error
        if value != int(value) or value < 1:
            raise SpaceError(
                f"threads of family {self.name!r} must be a whole number >= 1, "
                f"{self.threads.text} is {value}"
            )
        return int(value)

    def conform(self, values: Mapping[str, Value]) -> Configuration:
        """`values` as a configuration of this family: its names in order, its own values.

        What is rendered ends up in source text that is run, so nothing but a value from the
        family's own file may pass; an equal value of another type (2.0 for 2) becomes that one.

        Raises:
            SpaceError: a parameter is missing or unknown, or its value is not one of its values.
        """
        names = dict.fromkeys(parameter.name for parameter in self.parameters)
        if names.keys() != {*values}:
            wrong = next(
                each for each in (*names, *values) if not (each in names and each in values)
            )
            state = "missing" if wrong in names else "unknown"
            raise SpaceError(
                f"family {self.name!r} takes {', '.join(names)}; {shown(wrong)} is {state}"
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
