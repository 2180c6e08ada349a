"""Kernels for GPUs as files: the source, its binary, and what launches it by the driver's API."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from autotune.core.errors import InputError
from autotune.core.limits import GpuLimits
from autotune.core.printable import shown
from autotune.exporting.exportable import Exported, expanded
from autotune.families.gpu.launch import Binary, architecture_of, kernel_layout
from autotune.families.gpu.planning import planner_of
from autotune.gpu.compiling import compile_source
from autotune.gpu.interface import STATIC_SHARED_BYTES

if TYPE_CHECKING:
    from autotune.exporting.exportable import Exportable, Program
    from autotune.families.gpu.launch import LaunchPlan

_ARCHITECTURE = re.compile(r"sm_\d{2,3}[af]?")
_KERNEL = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)


def export(exportable: Exportable, form: str) -> Exported:
    """See `autotune.serving.reports.Exporter.export`."""
    problem, family, record = exportable.problem, exportable.family, exportable.record
    if kernel_layout(family, problem.layout) != problem.layout:
        raise InputError(
            f"record {record.id} is of layout {problem.layout}, which family {family.name!r} "
            "serves by copying operands first: export a record of layout "
            f"{family.layouts[0]}"
        )
    if _takes_maps(exportable):
        raise InputError(
            f"record {record.id} is of family {family.name!r}, whose kernels take tensor maps, "
            "which exported programs do not make: export a record of another family"
        )
    program, binary = exportable.program, exportable.binary
    notes: list[str] = []
    if binary is None:
        assert program is not None
        binary = _compiled(exportable, program)
        notes.append(f"the binary of record {record.id} is not kept: it was compiled again")
    plan = _checked(exportable, binary)
    if any(step.cooperative for step in plan.steps):
        raise InputError(
            f"record {record.id} is of a kernel whose blocks wait for each other, which exported "
            "programs do not launch: export a record of another family"
        )
    names = {
        **exportable.names(),
        "target": "cuda",
        "form": form,
        "source": None,
        "architecture": binary.architecture,
        "plan": plan,
        "runtime_names": program.source.runtime_parameters if program is not None else (),
        "static_shared_bytes": STATIC_SHARED_BYTES,
    }
    files = {
        f"{exportable.name}.cubin": binary.content,
        **(_python if form == "python" else _cpp)(exportable.name, names),
    }
    if program is None:
        notes.append(
            f"the files of family {family.name!r} have changed since record {record.id} was made: "
            "the binary is the one that was measured, and its source is not here"
        )
    else:
        # For Numba it is a module, which must not have the name of the one that launches it.
        names["source"] = f"{exportable.name}_source{family.language.suffix}"
        files[names["source"]] = program.source.text.encode()
    files |= exportable.common_files(names)
    return Exported(exportable.name, files, (*names["unchecked"], *notes))


def _takes_maps(exportable: Exportable) -> bool:
    binary, launch = exportable.binary, exportable.family.launch
    if binary is not None and binary.launch is not None:
        return bool(binary.launch.maps)
    return launch is not None and bool(launch.tensor_maps)


def _cpp(name: str, names: dict[str, Any]) -> dict[str, bytes]:
    files = {
        f"{name}.hpp": expanded("cuda/launcher.hpp.j2", names),
        "CMakeLists.txt": expanded("cuda/CMakeLists.txt.j2", names),
    }
    if not names["unchecked"]:
        files["main.cpp"] = expanded("cuda/main.cpp.j2", names)
    return files


def _python(name: str, names: dict[str, Any]) -> dict[str, bytes]:
    return {f"{name}.py": expanded("cuda/launcher.py.j2", names)}


def _compiled(exportable: Exportable, program: Program) -> Binary:
    """The binary that a source is compiled to now."""
    limits = exportable.device().limits
    assert isinstance(limits, GpuLimits)
    family, problem = exportable.family, exportable.problem
    architecture = architecture_of(family, limits.architecture)
    compiled = compile_source(program.source, family.name, architecture)
    planner = planner_of(family, program.configuration, problem.dtype, limits)
    return Binary(compiled.cubin, architecture, planner.plan(problem))


def _checked(exportable: Exportable, binary: Binary) -> LaunchPlan:
    """The launch of a binary, whose words become part of programs: a record's are a stranger's."""
    plan = binary.launch
    if (
        plan is None
        or plan.sizes != exportable.problem.shape
        or not _ARCHITECTURE.fullmatch(binary.architecture)
        or not all(_KERNEL.fullmatch(step.kernel) for step in plan.steps)
    ):
        raise InputError(
            f"record {exportable.record.id} must say how its kernel is launched for "
            f"{exportable.problem.label}, and says {shown(plan)}: tune the problem again"
        )
    return plan
