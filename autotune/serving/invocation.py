"""The command and the Python that tune and load a problem."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.core.dtypes import DEFAULT_DTYPE, ELEMENTS
from autotune.families.offers import refusal, unoffered
from autotune.operations.problem import OPERATIONS

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from autotune.core.device import DeviceFingerprint
    from autotune.families.family import KernelFamily
    from autotune.operations.problem import Problem
    from autotune.serving.target import Placement, Target

_DEFAULTS = {"dtype": DEFAULT_DTYPE, "out_dtype": None, "layout": "nn", "threads": None}
"""Fields of a problem that are left out where they have these values, or the dtype's own class."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """A problem, and all other arguments of its look-up.

    Attributes:
        problem: what is computed.
        target: the target's name.
        placement: the target's options that mean this device.
        device: which one, where one was asked for.
        cache: the user's cache, where it is not in the default place.
        families: folders of families of the user's own.
    """

    problem: Problem
    target: str
    placement: Placement
    device: int | str | None = None
    cache: str | None = None
    families: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        problem: Problem,
        target: Target,
        fingerprint: DeviceFingerprint,
        *,
        device: int | str | None = None,
        cache: str | os.PathLike[str] | None = None,
        extra_families: Sequence[str | os.PathLike[str]] = (),
    ) -> Invocation:
        """The invocation with the arguments of `autotune.load`, for the device they mean."""
        return cls(
            problem=problem,
            target=target.name,
            placement=target.placement(fingerprint),
            device=device,
            cache=None if cache is None else str(cache),
            families=tuple(map(str, extra_families)),
        )

    def command(self) -> str:
        """The command line that tunes it."""
        problem = self.problem
        words = ["autotune", "tune"]
        if problem.operation not in OPERATIONS:
            words.append(problem.operation)
        shape = "x".join(map(str, problem.shape))
        words += ["--shape", shape, "--target", self.target]
        for name, value in self._options():
            words += [f"--{name.replace('_', '-')}", str(value)]
        return shlex.join([*self.placement.launcher, *words])

    def load_lines(self, width: int) -> list[str]:
        """The lines of Python that load it.

        Args:
            width: columns that a line may have, if its words allow that.
        """
        own = self.problem.operation not in OPERATIONS
        names = ["find_operation", "load"] if own else ["Gemm", "load"]
        call = f"kernel = load({', '.join(self._arguments())})"
        calls = [call]
        if len(call) > width:
            arguments = (f"    {argument}," for argument in self._arguments())
            calls = ["kernel = load(", *arguments, ")"]
        if self.placement.comment:
            comment = f"  # {self.placement.comment}"
            calls[0] += comment if len(calls[0] + comment) <= width else ""
        return [f"from autotune import {', '.join(names)}", *calls]

    def _options(self) -> Iterator[tuple[str, object]]:
        """Options of the command besides sizes and target."""
        yield from self._differing()
        if self.device is not None:
            yield "device", self.device
        for name, value in self.placement.options.items():
            if name not in self.placement.replaced:
                yield name, value
        if self.cache is not None:
            yield "cache", self.cache
        yield from (("families", folder) for folder in self.families)

    def _differing(self) -> Iterator[tuple[str, object]]:
        """The problem's fields, besides sizes, that differ from the defaults."""
        usual = {**_DEFAULTS, "accuracy": ELEMENTS[self.problem.dtype].accuracy}
        for name, default in usual.items():
            value = getattr(self.problem, name)
            if value != default:
                yield name, value

    def _arguments(self) -> list[str]:
        """The arguments of `autotune.load`, as Python."""
        problem = self.problem
        own = problem.operation not in OPERATIONS
        names = problem.defined.sizes if own else [name.lower() for name in problem.defined.sizes]
        fields = [f"{name}={size}" for name, size in zip(names, problem.shape, strict=True)]
        fields += [f"{name}={_quote(value)}" for name, value in self._differing()]
        folders = f"[{', '.join(map(_quote, self.families))}]"
        kind = "Gemm"
        if own:
            found = ", ".join([_quote(problem.operation), *([folders] if self.families else [])])
            kind = f"find_operation({found}).problem"
        arguments = [f"{kind}({', '.join(fields)})", f"target={_quote(self.target)}"]
        if self.placement.arguments is not None:
            arguments += [f"{name}={text}" for name, text in self.placement.arguments]
        else:
            chosen = {"device": self.device, **self.placement.options}
            arguments += [
                f"{name}={_quote(value)}" for name, value in chosen.items() if value is not None
            ]
        if self.cache is not None:
            arguments.append(f"cache={_quote(self.cache)}")
        if self.families:
            arguments.append(f"extra_families={folders}")
        return arguments


def not_tuned(
    invocation: Invocation, families: Mapping[str, KernelFamily], reason: str, enough: str
) -> str:
    """The message, in one line, where nothing good enough is in the cache.

    Args:
        invocation: the look-up.
        families: those there are for its operation and target.
        reason: why what was found is not good enough.
        enough: the `match` that would take it.
    """
    problem = invocation.problem
    impossible = refusal(families, problem)
    if impossible is None and problem.accuracy != ELEMENTS[problem.dtype].accuracy:
        impossible = unoffered([*families.values()], problem.dtype, problem.accuracy)
    start = f"no tuned {invocation.target} kernel for {problem.label}"
    if impossible is not None:
        return f"{start}, and none can be: {impossible}"
    return f'{start} ({reason}): run `{invocation.command()}`, or load with match="{enough}"'


def _quote(value: object) -> str:
    """A value as Python, in double quotes where those will do."""
    text = repr(value)
    return f'"{text[1:-1]}"' if text.startswith("'") and '"' not in text else text
