"""Options of NVRTC, as a line of a kernel's own source: see `autotune.gpu.nvidia.nvrtc`.

What names or digests the source then covers them, wherever it is compiled, kept or exported.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from autotune.core.arguments import must
from autotune.core.errors import InputError
from autotune.core.printable import shown
from autotune.own.tabulating import of_values, tabulated

Options: TypeAlias = "Sequence[str] | Callable[..., Any]"
"""Options, in which ``{NAME}`` is a parameter's value; or a function of parameters, of a
dictionary or by name, that gives them."""

_KEY = "compiler_options"
_FOLDER = ("--include-path=", "-I")
_OPTION = re.compile(r"-[^\x00-\x1f\x7f-\U0010ffff\"'\\{}]+")


def divided(given: Options) -> tuple[Options, tuple[Path, ...]]:
    """The options that a compiler is given, and the folders of headers that are among them.

    Raises:
        InputError: they are of another form.
    """
    if callable(given):
        return given, ()
    several = isinstance(given, (list, tuple)) and all(isinstance(each, str) for each in given)
    must(_KEY, 'a list like ["--use_fast_math"], or a function', given, several)
    folders = [each for each in given if each.startswith(_FOLDER)]
    rest = [each for each in given if each not in folders]
    return rest, tuple(Path(each.split("=", 1)[-1].removeprefix("-I")) for each in folders)


def options_line(
    given: Options, parameters: Mapping[str, Sequence[Any]], words: Mapping[str, Sequence[str]]
) -> list[str]:
    """The line of a template that holds the options; nothing where there are none.

    Args:
        given: the options, without folders.
        parameters: the values of each parameter that is compiled in.
        words: of those whose values are no plain ones, what templates call each.

    Raises:
        InputError: one is no option, or of something else.
    """
    if not given:
        return []
    told = of_values(given, [*parameters])[0] if callable(given) else None

    def called(values: Mapping[str, Any]) -> str:
        try:
            if told is None:
                assert not callable(given)
                made = [each.format_map(values) for each in given]
            else:
                made = told(values)
        except Exception as error:  # whatever a user's function may raise
            what = f"{type(error).__name__}: {error}"
            raise InputError(f"{_KEY} must be of {', '.join(parameters)}: {what}") from error
        for each in made:
            fits = isinstance(each, str) and _OPTION.fullmatch(each)
            if not fits or each.startswith(_FOLDER):
                raise InputError(
                    f"{_KEY} must be like --use_fast_math, without quotes, got {shown(each)}; "
                    "folders of headers follow from no parameter"
                )
        return shlex.join(made)

    names, found = tabulated(called, parameters, _KEY)
    if not names:
        return [f"// nvrtc: {found[()]}"] if found[()] else []
    spelled = [words.get(name, parameters[name]) for name in names]
    rows = {
        tuple(values[at] for values, at in zip(spelled, places, strict=True)): text
        for places, text in found.items()
    }
    return [f"// nvrtc: {{{{ {rows!r}[({', '.join(names)},)] }}}}"]
