"""From a configuration to a program: code found in this process, on disk, or compiled."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from autotune.core import session
from autotune.core.configuration import Configuration
from autotune.core.dtypes import DEFAULT_DTYPE, ELEMENTS
from autotune.core.errors import CompileError, InputError
from autotune.core.facts import unchanged
from autotune.core.forking import LOADING
from autotune.families.gpu.cuda_source import includes
from autotune.families.gpu.launch import architecture_of, kernel_layout
from autotune.families.gpu.launched import check_launches
from autotune.families.gpu.planning import planner_of
from autotune.families.rendering import Source, render
from autotune.gpu.compiling import (
    CompileReply,
    CompileRequest,
    Refused,
    compile_kept,
    compile_worker,
    is_kept,
)
from autotune.gpu.driver import used, vendor
from autotune.gpu.launch.program import GpuProgram
from autotune.measuring.processes import WorkerProcess
from autotune.serving.background import Job, background

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from autotune.core.configuration import Value
    from autotune.core.limits import GpuLimits
    from autotune.families.family import KernelFamily
    from autotune.families.gpu.launch import Binary
    from autotune.families.gpu.planning import Planner
    from autotune.families.program_cache import ProgramCache
    from autotune.operations.problem import Problem
    from autotune.serving.background import Workers

SUPPORT_FAMILY = "support"


@dataclass(frozen=True, slots=True)
class Code:
    """Binaries of the kernels, and of those that copy operands: empty where nothing is copied."""

    cubin: bytes
    support: bytes


_CODE: dict[tuple[object, ...], Code] = session.keep("code of launches", {}, lasting=True)
"""All that this process has compiled or found compiled, by what it depends on."""


def support_source(dtype: str, out_dtype: str | None = None) -> Source:
    """The source of the kernels that the engine itself runs.

    Args:
        dtype: element type of the operands.
        out_dtype: element type of results; None means `dtype`.
    """
    result, word = ELEMENTS[out_dtype or ELEMENTS[dtype].result], ELEMENTS[dtype].word
    if result.kind != "floating":  # no kernel judges those
        result = ELEMENTS[DEFAULT_DTYPE]
    text = resources.files("autotune.gpu.launch").joinpath("support.cu").read_text()
    types = f"typedef {result.c_type} T;\ntypedef {word.c_type} WORD;\n"
    target = vendor().support_target
    return Source(f"{includes(result)}{types}\n{text}", "transpose", (), target, ".cu")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Code that is wanted.

    Attributes:
        planner: of the configuration.
        problem: what it computes; its sizes do not matter.
        architecture: of the device: "sm_90".
        programs: where sources are, and what was compiled from them.
    """

    planner: Planner
    problem: Problem
    architecture: str
    programs: ProgramCache

    @property
    def key(self) -> tuple[object, ...]:
        """All that the code depends on."""
        problem, planner = self.problem, self.planner
        types = problem.dtype, problem.out_dtype, problem.layout
        folder = self.programs.folder
        return planner.family, planner.fixed, *types, self.architecture, folder

    def is_here(self) -> bool:
        """Is it compiled? Where that takes rendering its source, it is not."""
        if self.key in _CODE:
            return True
        family = self.planner.family
        settings = family.language.settings()
        path = self.programs.known(family.name, family.target, self._source_key, settings)
        if path is None or not unchanged(family.template_files):
            return False
        return all(is_kept(self.programs, request) for request in self._requests(self._read(path)))

    def requests(self) -> list[CompileRequest]:
        """The compiler's tasks."""
        return self._requests(self._source())

    def code(self) -> Code:
        """The code; it is compiled unless it is here.

        Raises:
            CompileError: the compiler refuses the source.
            MissingDependencyError: there is no compiler, or it does not know the architecture.
            CacheError: the program cache cannot be written.
        """
        if self.key not in _CODE:
            cubin, *support = map(self._compile, self.requests())
            _CODE[self.key] = Code(cubin, support[0] if support else b"")
        return _CODE[self.key]

    @property
    def _layout(self) -> str:
        return kernel_layout(self.planner.family, self.problem.layout)

    @property
    def _source_key(self) -> object:
        family, problem = self.planner.family, self.problem
        types = problem.dtype, problem.out_dtype, self._layout
        return family.operation, family.digest, dict(self.planner.fixed), *types

    def _source(self) -> Source:
        family = self.planner.family

        def rendered() -> Source:
            return render(
                family,
                self.planner.configuration,
                dtype=self.problem.dtype,
                layout=self._layout,
                out_dtype=self.problem.out_dtype,
            )

        if not unchanged(family.template_files):  # what was read is not what it would make now
            return rendered()
        key, settings = self._source_key, family.language.settings()
        path = self.programs.written(family.name, family.target, key, rendered, settings)
        return self._read(path)

    def _read(self, path: Path) -> Source:
        return Source.of(self.planner.family, path.read_text(encoding="utf-8"))

    def _requests(self, source: Source) -> list[CompileRequest]:
        family, launch = self.planner.family, self.planner.family.launch
        mapped = launch is not None and any(each.region is None for each in launch.tensor_maps)
        own = architecture_of(family, self.architecture)
        wanted = [CompileRequest(source, family.name, own)]
        if self._layout != self.problem.layout or mapped:
            support = support_source(self.problem.dtype)
            wanted.append(CompileRequest(support, SUPPORT_FAMILY, self.architecture))
        return wanted

    def _compile(self, request: CompileRequest) -> bytes:
        reply = compile_kept(self.programs, request)
        if isinstance(reply, Refused):
            raise refused(request, reply)
        return reply.cubin


def refused(request: CompileRequest, reply: Refused) -> CompileError:
    """The error to raise where the compiler does not accept a source."""
    return CompileError(
        f"{request.family} does not compile for {request.architecture}: {reply.reason}"
    )


def make_program(
    family: KernelFamily,
    configuration: Mapping[str, Value],
    problem: Problem,
    limits: GpuLimits,
    programs: ProgramCache,
    binary: Binary | None = None,
) -> GpuProgram:
    """The program of a configuration.

    Args:
        family: the configuration's family.
        configuration: which kernel.
        problem: what it computes.
        limits: of the device it is to run on.
        programs: where sources are, and what was compiled from them before.
        binary: what this configuration was compiled to; None compiles it.

    Raises:
        CompileError: the compiler refuses the source.
        FamilyError: the configuration launches a kernel that its source has not.
        MissingDependencyError: there is no binary and no compiler, or it does not know the device.
        SpaceError: the configuration cannot be launched for these sizes.
        CacheError: the program cache cannot be written.
    """

    def planner() -> Planner:
        return planner_of(family, Configuration(configuration), problem.dtype, limits)

    layout = kernel_layout(family, problem.layout)
    if binary is None:
        code = Wanted(planner(), problem, limits.architecture, programs).code()
        cubin, support = code.cubin, code.support
        plan = planner().plan(problem)
        if len(plan.steps) > 1:
            check_launches(family, plan, vendor().compilers[family.target].read(cubin))
    elif limits.runs(binary.architecture):
        cubin, support, layout = binary.content, binary.support, binary.layout or layout
        plan = binary.launch or planner().plan(problem)
    else:
        raise InputError(
            f"the binary must be for {limits.architecture}, is for {binary.architecture}"
        )
    types = problem.dtype, problem.layout
    return GpuProgram(cubin, plan, *types, layout, support, problem.defined, problem.out_dtype)


def compile_job(
    family: KernelFamily,
    configuration: Configuration,
    problem: Problem,
    limits: GpuLimits,
    programs: ProgramCache,
) -> Job | None:
    """A job that compiles a kernel in another process; None where it is compiled.

    Arguments are those of `make_program`.
    """
    planner = planner_of(family, configuration, problem.dtype, limits)
    wanted = Wanted(planner, problem, limits.architecture, programs)
    key = ("cuda", *wanted.key)
    if not background().has(key) and wanted.is_here():
        return None

    def start() -> WorkerProcess:
        arguments = programs, (family.target,), used()
        return WorkerProcess(compile_worker, *arguments, replies=CompileReply, renewed=True)

    def compile_all(workers: Workers) -> None:
        kind = family.target, programs.folder
        with LOADING:  # a fork waits for what is imported and rendered for the first time
            requests = wanted.requests()
        for request in requests:
            reply = workers.ask(kind, start, request)
            if isinstance(reply, Refused):
                raise refused(request, reply)
        with LOADING:
            wanted.code()

    return Job(key, f"{family.name} for {problem.dtype}", compile_all)
