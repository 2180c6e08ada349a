"""Kernels that a family's [launch] names, against those that its source has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.errors import FamilyError
from autotune.core.printable import shown
from autotune.core.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from autotune.core.configuration import Value
    from autotune.families.family import KernelFamily
    from autotune.families.gpu.launch import LaunchPlan
    from autotune.families.parts import AuxiliaryKernel


def check_constant_launches(
    family: KernelFamily, kernels: Collection[str], constants: Mapping[str, Value]
) -> None:
    """Refuse a source without a kernel that is launched whatever the problem.

    Args:
        family: whose source it is.
        kernels: those that the source has.
        constants: what the source was rendered with.

    Raises:
        FamilyError: there is none; the message names file and key, and the kernels there are.
    """
    for key, auxiliary in _further(family):
        if auxiliary.when.names <= constants.keys() and auxiliary.when.holds(constants):
            _check(family, key, auxiliary.kernel, kernels)


def check_launches(family: KernelFamily, plan: LaunchPlan, kernels: Collection[str]) -> None:
    """Refuse a plan that launches a kernel that the source has not.

    Args:
        family: whose plan it is.
        plan: what is launched.
        kernels: those that the source, or its binary, has.

    Raises:
        FamilyError: as `check_constant_launches`.
    """
    launched = {step.kernel for step in plan.steps}
    for key, auxiliary in _further(family):
        if auxiliary.kernel in launched:
            _check(family, key, auxiliary.kernel, kernels)


def _further(family: KernelFamily) -> Iterator[tuple[str, AuxiliaryKernel]]:
    """Further kernels, each with its key in the file."""
    if family.launch is not None:
        for place in ("before", "after"):
            for number, each in enumerate(getattr(family.launch, place), start=1):
                yield f"launch.{place}[{number}].kernel", each


def _check(family: KernelFamily, key: str, name: str, kernels: Collection[str]) -> None:
    if name not in kernels:
        raise FamilyError(
            f"{family.path}: {key} must be a kernel of the emitted source, got {shown(name)}; "
            f"there are {', '.join(kernels)}{did_you_mean(name, list(kernels))}"
        )
