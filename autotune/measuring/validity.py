"""Which candidates are valid for a problem on a device: asked before anything is made of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.core.configuration import Candidate
    from autotune.core.device import DeviceLimits
    from autotune.families.family import KernelFamily
    from autotune.operations.problem import Problem
    from autotune.space import SearchSpace


class Validity:
    """The families' spaces for one problem on one device, each made when it is first asked for.

    Args:
        families: by name; candidates name them.
        problem: what is computed.
        limits: of the device.
    """

    def __init__(
        self, families: Mapping[str, KernelFamily], problem: Problem, limits: DeviceLimits
    ) -> None:
        self._families = families
        self._problem = problem
        self._limits = limits
        self._spaces: dict[str, SearchSpace] = {}

    def rejection(self, candidate: Candidate) -> str | None:
        """Why a candidate is not valid here, or None."""
        name = candidate.family
        if name not in self._spaces:
            self._spaces[name] = self._families[name].space(self._problem, self._limits)
        rejection = self._spaces[name].rejection(candidate.configuration)
        return None if rejection is None else str(rejection)
