"""Programs of families of gemm for CPUs, compiled once a module and called on guarded matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from gemm_calls import GemmCall, drawn, multiply
from numpy.typing import NDArray

from autotune.core.configuration import Configuration, Value
from autotune.families.modules import load_module
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import render
from autotune.targets.families import load_families

FAMILIES = load_families(target="cpu", operation="gemm")


@dataclass(frozen=True, slots=True)
class Program:
    """A program, and the runtime parameters to call it with.

    Values need not be of the space: LLVM splits vectors that this processor does not have, and a
    compiled program takes any block.
    """

    family: str
    configuration: Mapping[str, Value]
    dtype: str = "float32"
    layout: str = "nn"

    def __str__(self) -> str:
        values = "-".join(str(value) for value in self.configuration.values())
        return f"{self.family}-{values}-{self.dtype}-{self.layout}"

    def with_values(self, **values: Value) -> Program:
        """The program of a configuration that differs."""
        return replace(self, configuration={**self.configuration, **values})

    @property
    def compiled(self) -> Program:
        """The program with the first value of every parameter that is passed at the call."""
        parameters = FAMILIES[self.family].parameters
        return self.with_values(
            **{each.name: each.values[0] for each in parameters if each.runtime}
        )

    def write(self, programs: ProgramCache) -> Path:
        """The emitted module, one for all values of parameters that are passed at the call."""
        configuration = Configuration(self.compiled.configuration)
        family = FAMILIES[self.family]
        source = render(family, configuration, dtype=self.dtype, layout=self.layout)
        return programs.write(source, self.family)

    @property
    def runtime(self) -> tuple[int, ...]:
        """Values that are passed at the call."""
        parameters = FAMILIES[self.family].parameters
        return tuple(int(self.configuration[each.name]) for each in parameters if each.runtime)


class Programs:
    """Modules of programs, compiled once."""

    def __init__(self, folder: Path) -> None:
        self.cache = ProgramCache(folder)
        self._modules: dict[str, ModuleType] = {}

    def module(self, program: Program) -> ModuleType:
        """The compiled module of a program."""
        key = str(program.compiled)
        if key not in self._modules:
            self._modules[key] = load_module(program.write(self.cache))
        return self._modules[key]

    def multiply(
        self,
        program: Program,
        call: GemmCall,
        runtime: Sequence[int] | None = None,
        operands: tuple[NDArray[Any], NDArray[Any]] | None = None,
    ) -> NDArray[np.floating]:
        """The result of a call, found to be right; of drawn operands where none are given."""
        return multiply(
            self.module(program),
            program.layout,
            *(operands or drawn(call, program.dtype)),
            call,
            program.runtime if runtime is None else runtime,
            FAMILIES[program.family].accuracy,
        )


def each_of(
    argument: str, programs: Sequence[Program], every_day: Sequence[Program]
) -> pytest.MarkDecorator:
    """Parametrizes a test; of programs that are not compiled every day the sample has none."""
    compiled = {str(each.compiled) for each in every_day}
    marked = [
        pytest.param(
            each,
            id=str(each),
            marks=[] if str(each.compiled) in compiled else pytest.mark.sampled(0),
        )
        for each in programs
    ]
    return pytest.mark.parametrize(argument, marked)
