"""Rendering: a family, a configuration, a dtype and a layout become source text."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.core.configuration import Configuration, Value
from autotune.core.dtypes import DEFAULT_DTYPE, ELEMENTS
from autotune.core.errors import FamilyError, ProblemError
from autotune.core.printable import shown
from autotune.families.banner import banner
from autotune.families.gpu.launched import check_constant_launches
from autotune.families.headers import with_headers
from autotune.families.templating import expand, header_folders
from autotune.operations.epilogue import epilogue_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.families.family import KernelFamily, Language
    from autotune.operations.operation import Operation

WORD = re.compile(r"(?=.{1,64}$)[A-Za-z]\w*(-\w+)*", re.ASCII)
"""The form of a parameter's text: a word, or words with single hyphens between them."""

_RESERVED = (
    "dtype",
    "layout",
    "banner",
    "program",
    "signature",
    "arguments",
    "entry",
    "absent",
    "epilogue",
)


@dataclass(frozen=True, slots=True)
class Source:
    """Emitted source: what a compiler is given.

    Attributes:
        text: the source.
        entry: name of the function to call.
        runtime_parameters: parameters passed at the call, after the operands, in this order.
        target: the target that it is source for.
        suffix: of files that it is written to.
        settings: of the compiler, as `Language.settings`.
    """

    text: str
    entry: str
    runtime_parameters: tuple[str, ...]
    target: str
    suffix: str = ".py"
    settings: str = ""

    @classmethod
    def of(cls, family: KernelFamily, text: str) -> Source:
        """The source that was emitted for a family."""
        language, runtime = family.language, family.runtime_parameters
        return cls(
            text, family.operation, runtime, family.target, language.suffix, language.settings()
        )

    @property
    def digest(self) -> str:
        """SHA-256 of the text in hex; equal digests are the same program."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def render(
    family: KernelFamily,
    configuration: Mapping[str, Value],
    *,
    dtype: str = DEFAULT_DTYPE,
    layout: str = "nn",
    out_dtype: str | None = None,
) -> Source:
    """Render a family's template.

    The source depends on nothing else: not on sizes, device, time or versions. Configurations
    that differ in runtime parameters only give the same source.

    Args:
        family: what to render.
        configuration: a value for each of the family's parameters.
        dtype: one of the family's dtypes.
        layout: one of the family's layouts.
        out_dtype: element type of the result, one that the family writes; None means `dtype`.

    Raises:
        ProblemError: the family does not declare that dtype, result or layout.
        SpaceError: the configuration is not one of the family's.
        FamilyError: the template is at fault, the message names its file and line; or a value is
            not one that may be part of source text.
    """
    _declared("dtype", dtype, family.dtypes, family)
    result = out_dtype or ELEMENTS[dtype].result
    _declared("out_dtype", result, family.results(dtype), family)
    _declared("layout", layout, family.layouts, family)
    runtime = family.runtime_parameters
    compiled = Configuration(
        {name: v for name, v in family.conform(configuration).items() if name not in runtime}
    )
    language = family.language
    constants = _checked(family, family.constants(compiled, dtype))
    types = dtype if result == dtype else f"{dtype} to {result}"
    opening = banner(family, compiled, constants, types, layout)
    names: dict[str, object] = {
        **constants,
        **language.names(family, constants, dtype, result),
        **_epilogue(family, dtype),
        "dtype": dtype,
        "layout": layout,
        "banner": opening,
        # For names that must differ between programs: what the banner says is all they depend on.
        "program": hashlib.sha256(opening.encode()).hexdigest()[:16],
    }
    text = expand(family.template, family.template_folders, names)
    if language.headers:
        text = with_headers(text, header_folders(family.template, family.template_folders)).text
    if language.lay_out is not None:
        text = language.lay_out(text, str(names["arguments"]))
    language.check(family, text)
    if language.kernels is not None:
        check_constant_launches(family, language.kernels(text), constants)
    return Source.of(family, text)


def reserved_names(operation: Operation, language: Language) -> frozenset[str]:
    """Names that emitted source or its template gives a meaning: no parameter may have them."""
    return frozenset({*_RESERVED, operation.name}) | language.reserved(operation)


def _declared(field: str, value: str, declared: tuple[str, ...], family: KernelFamily) -> None:
    if value not in declared:
        raise ProblemError(
            f"{field} of family {family.name!r} must be one of {', '.join(declared)}, "
            f"got {value!r}"
        )


def _checked(family: KernelFamily, known: dict[str, Value]) -> dict[str, Value]:
    """The same, if all of it may be part of source text: spaces are data of strangers.

    A number is; a text is when a parameter declares it and it is a `WORD`. Free text is not.
    """
    declared = {parameter.name for parameter in family.parameters}
    for name, value in known.items():
        if isinstance(value, str):
            insertable = name in declared and WORD.fullmatch(value) is not None
        else:
            insertable = abs(value) < 2**63 if isinstance(value, int) else math.isfinite(value)
        if not insertable:
            raise FamilyError(
                f"family {family.name!r}: {name} must be a finite number, or a word that a "
                f"parameter declares, to be put into source text, got {shown(value)}"
            )
    return known


def _epilogue(family: KernelFamily, dtype: str) -> dict[str, object]:
    """The names of an operation's entry and epilogue in a template."""
    following, language = epilogue_of(family.defined), family.language
    given = None
    if following is not None and language.epilogue is not None:
        given = language.epilogue(following, dtype)
    return {
        "entry": family.operation,
        "absent": [] if following is None else [*following.absent],
        "epilogue": given,
    }
