"""What a configuration compiles to: found in this process, on disk, or made by the compiler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.core import session
from autotune.core.errors import CompileError
from autotune.core.facts import unchanged
from autotune.families.gpu.launch import architecture_of, kernel_layout
from autotune.families.rendering import Source, render
from autotune.gpu.launch.support_source import support_source
from autotune.gpu.nvidia.compile.compiling import (
    CompileRequest,
    Refused,
    compile_kept,
    is_kept,
)

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.families.gpu.planning import Planner
    from autotune.families.program_cache import ProgramCache
    from autotune.operations.problem import Problem

_SUPPORT_FAMILY = "support"


@dataclass(frozen=True, slots=True)
class Code:
    """What was compiled.

    Attributes:
        cubin: the kernels.
        support: the kernels that copy operands; empty where nothing is copied.
    """

    cubin: bytes
    support: bytes


_CODE: dict[tuple[object, ...], Code] = session.keep("code of launches", {}, lasting=True)
"""What this process has compiled or found compiled, by all that it depends on."""


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
        """Whether it is compiled; where that takes rendering its source, it is not."""
        if self.key in _CODE:
            return True
        family = self.planner.family
        path = self.programs.known(family.name, family.target, self._source_key)
        if path is None or not unchanged(family.template_files):
            return False
        return all(is_kept(self.programs, each) for each in self._requests(self._read(path)))

    def requests(self) -> list[CompileRequest]:
        """What is asked of the compiler."""
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
        key = self._source_key
        return self._read(self.programs.written(family.name, family.target, key, rendered))

    def _read(self, path: Path) -> Source:
        family = self.planner.family
        text = path.read_text(encoding="utf-8")
        return Source(text, family.operation, family.runtime_parameters, family.target)

    def _requests(self, source: Source) -> list[CompileRequest]:
        family, launch = self.planner.family, self.planner.family.launch
        own = architecture_of(family, self.architecture)
        wanted = [CompileRequest(source, family.name, own)]
        if self._layout != self.problem.layout or (launch is not None and launch.tensor_maps):
            support = support_source(self.problem.dtype)
            wanted.append(CompileRequest(support, _SUPPORT_FAMILY, self.architecture))
        return wanted

    def _compile(self, request: CompileRequest) -> bytes:
        reply = compile_kept(self.programs, request)
        if isinstance(reply, Refused):
            raise refused(request, reply)
        return reply.cubin


def refused(request: CompileRequest, reply: Refused) -> CompileError:
    """What to raise where the compiler does not accept a source."""
    return CompileError(
        f"{request.family} does not compile for {request.architecture}: {reply.reason}"
    )
