"""Kernel families: one template, one search space, and what they promise.

Families lie below targets and know none of them by name. What templates are written in, each
target says as a `Language`; languages are handed in where families are read, by target
(`autotune.targets.registry.LANGUAGES`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autotune.core.configuration import Configuration, Value
from autotune.core.dtypes import ELEMENTS
from autotune.core.errors import SpaceError
from autotune.core.printable import shown
from autotune.operations.formula import Formula
from autotune.operations.operation import Operation
from autotune.operations.problem import GEMM, Problem, admits, element_sizes
from autotune.space import Expression, Restriction, SearchSpace, TunableParameter, UndefinedError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from autotune.core.device import DeviceLimits
    from autotune.core.facts import Stamp
    from autotune.families.epilogue_text import EpilogueText
    from autotune.families.parts import Launch, Local, Preset, Work
    from autotune.operations.epilogue import Epilogue

LARGEST_SIZE = 2**31 - 2**16
"""Of a problem on a GPU: kernels count in 32 bits, up to a tile beyond the last element."""


def _no_names(
    family: KernelFamily, constants: Mapping[str, Value], dtype: str, out_dtype: str
) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Delegate:
    """A target whose kernels multiply for programs of another one.

    Attributes:
        demands: restrictions on the device, texts with reasons.
        threaded: whether its kernels use threads of the host.
    """

    demands: tuple[tuple[str, str], ...] = ()
    threaded: bool = False


@dataclass(frozen=True, slots=True)
class Language:
    """The language that the families of a target are written in.

    Attributes:
        limits: device limits that a family's expressions may use, by name.
        check: refuses emitted text that is not such source; raises FamilyError.
        names: names for templates, beside those that all have, for a family, what is compiled
            in, and the element types of operands and result.
        reserved: names that the source of an operation gives a meaning of its own.
        suffix: of the files that sources are written to.
        settings: of the compiler, as far as they are not its defaults and change its code: what
            is compiled under them is kept apart.
        lay_out: breaks long lines of emitted text, which the second argument, what the kernels
            take, may be part of.
        headers: whether sources may include headers in quotes, which become part of them.
        kernels: names of the kernels of emitted text; None where a source has one only.
        block_restrictions: limits on what one block needs, where families say how they are
            launched ([launch]); the argument is the least number of blocks that must be resident
            at once, an expression. None where kernels are called and not launched.
        runtime: whether kernels take parameters at the call (`runtime = true`).
        mapped: whether kernels may take tensor maps, run in clusters, and use features of one
            architecture alone.
        featured: the name of an architecture ("sm_90") with the features that no other has
            ("sm_90a").
        own_operations: whether a family may compute an operation that its user defines.
        epilogue: the text of an epilogue for operands of a dtype, for templates; None where
            families compute no epilogues.
        lacks: functions of epilogues that sources cannot call.
        threaded: whether families may say how many threads of the host they use (`threads`).
        local: targets that programs may leave a product to ([local]).
        folders: folders of the target's own families, where they are not this project's.
    """

    limits: frozenset[str]
    check: Callable[[KernelFamily, str], None]
    names: Callable[[KernelFamily, Mapping[str, Value], str, str], dict[str, Any]] = _no_names
    reserved: Callable[[Operation], frozenset[str]] = lambda operation: frozenset()
    suffix: str = ".py"
    settings: Callable[[], str] = str
    lay_out: Callable[[str, str], str] | None = None
    headers: bool = False
    kernels: Callable[[str], tuple[str, ...]] | None = None
    block_restrictions: Callable[[str], tuple[Restriction, ...]] | None = None
    runtime: bool = True
    mapped: bool = False
    featured: Callable[[str], str] = str
    own_operations: bool = False
    epilogue: Callable[[Epilogue, str], EpilogueText | None] | None = None
    lacks: frozenset[str] = frozenset()
    threaded: bool = False
    local: Mapping[str, Delegate] = field(default_factory=dict)
    folders: tuple[Path, ...] = ()

    @property
    def launched(self) -> bool:
        """True if families say how they are launched."""
        return self.block_restrictions is not None


@dataclass(frozen=True, slots=True, eq=False)
class KernelFamily:
    """One algorithm: a template and the space of the parameters it is rendered with.

    Attributes:
        name: what users call it; unique among the families of its operation and target.
        operation: what it computes ("gemm").
        target: the name of the target it runs on.
        language: what its template is written in.
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
        runtime_parameters: names of those that are passed at the call, in the order of the file.
        free_parameters: of those, the ones that [work] names: a model knows their effect.
    """

    name: str
    operation: str
    target: str
    language: Language
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
    runtime_parameters: tuple[str, ...] = field(init=False)
    free_parameters: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        names = tuple([each.name for each in self.parameters if each.runtime])
        object.__setattr__(self, "runtime_parameters", names)
        work = () if self.work is None else self.work.expressions
        named = {name for each in work for name in each.ordered_names}
        free = tuple([name for name in names if name in named])
        object.__setattr__(self, "free_parameters", free)

    @property
    def adopted(self) -> bool:
        """True if it is one of gemm's that computes another operation with an epilogue."""
        return self.epilogue and self.operation != GEMM.name

    def results(self, dtype: str) -> tuple[str, ...]:
        """The element types that results of operands of a dtype may have, their own first."""
        own, sums = ELEMENTS[dtype].result, ELEMENTS[dtype].accumulation
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
        called = result.functions if isinstance(result := self.defined.result, Formula) else ()
        if self.adopted and (lacking := sorted(self.language.lacks.intersection(called))):
            return f"{self.name} has no {' and '.join(lacking)} on {self.target}"
        stacked = any(len(each.shape) > 2 for each in self.defined.inputs)
        if stacked and problem.layout not in self.layouts:
            return f"{self.name} reads layouts {', '.join(self.layouts)}, not {problem.layout}"
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

    def constants(
        self,
        configuration: Mapping[str, Value],
        dtype: str,
        limits: DeviceLimits | None = None,
    ) -> dict[str, Value]:
        """Parameters, `element_sizes`, a device's limits, and what is derived from those alone.

        Raises:
            SpaceError: a division in a derived name is not whole.
        """
        known: dict[str, Value] = {**configuration, **element_sizes(dtype)}
        known |= {} if limits is None else limits.names()
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
        """The number of threads that a CPU kernel of this family uses.

        Raises:
            SpaceError: a parameter is missing, or the count is no whole number >= 1.
        """
        if self.threads is None:
            return 1
        known = configuration
        if not self.threads.names <= known.keys():
            known = self.constants(self.conform(configuration), dtype)
        where = f"family {self.name!r} has no threads for {configuration}"
        return self.whole(self.threads, known, 1, where)

    def whole(
        self, expression: Expression, known: Mapping[str, Value], least: int, where: str
    ) -> int:
        """The value of an expression that must be a whole number.

        Args:
            expression: one of the family's.
            known: the names that it uses.
            least: the number must not be below it.
            where: begins the message of an error.

        Raises:
            SpaceError: it has no value, or one that is not a whole number, or less.
        """
        try:
            value = expression.evaluate(known)
        except UndefinedError as error:
            raise SpaceError(f"{where}: {error}") from error
        if value != int(value) or value < least:
            raise SpaceError(
                f"{where}: {expression.text} must be a whole number >= {least}, is {value}"
            )
        return int(value)

    def conform(self, values: Mapping[str, Value]) -> Configuration:
        """`values` as a configuration of this family: its names in order, its own values.

        What is rendered ends up in source text that is run, so nothing but a value from the
        family's own file may pass; an equal value of another type (2.0 for 2) becomes that one.

        Raises:
            SpaceError: a parameter is missing or unknown, or its value is not one of its values.
        """
        given, chosen = dict(values.items()), dict[str, Value]()
        names = {parameter.name: parameter for parameter in self.parameters}
        if names.keys() != given.keys():
            wrong = next(
                each for each in (*names, *values) if not (each in names and each in values)
            )
            state = "missing" if wrong in names else "unknown"
            raise SpaceError(
                f"family {self.name!r} takes {', '.join(names)}; {shown(wrong)} is {state}"
            )
        for name, parameter in names.items():
            position = parameter.position(given[name])
            if position is None:
                raise SpaceError(
                    f"{self.name}.{name} must be one of "
                    f"{', '.join(map(str, parameter.values))}, got {shown(given[name])}"
                )
            chosen[name] = parameter.values[position]
        return Configuration(chosen)
