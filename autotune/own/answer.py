"""An answer in place of a reference: arrays that a kernel must give for operands given with it."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from autotune.core.errors import CacheError, InputError
from autotune.core.paths import CacheLocations, private_folder
from autotune.core.printable import shown
from autotune.own.call_sizes import sizes_of_call
from autotune.own.description import Description

_REASON = "the sizes of the answer"


def with_answer(said: Description, cache: str | Path | None) -> Description:
    """A description whose answer, if it has one, is a function that reads it from a file.

    The file lies in the cache and is named after a digest of what it holds. Kernels are for the
    answer's sizes alone, and are verified and timed on the operands that it is the answer to.

    Args:
        said: the description; its inputs are arrays by name where its reference is an answer.
        cache: the user's cache; None takes the default place.

    Raises:
        InputError: arrays do not fit the operands, or some are missing.
        CacheError: the file cannot be written.
    """
    reference: Any = said.reference
    answers = reference if isinstance(reference, (list, tuple)) else [reference]
    if not any(hasattr(each, "__array__") for each in answers):
        if isinstance(said.inputs, Mapping):
            raise InputError(
                "inputs must be a function, unless reference is an answer: kernel.tune(a, b) "
                "takes the operands of a call"
            )
        return said
    given = said.inputs
    if not isinstance(given, Mapping):
        raise InputError(
            "inputs must be the operands that the answer is for, by name, where reference is an "
            f"array, got {shown(given)}"
        )
    defined = replace(said, reference=_none, inputs=None).operation("answer")
    names, outputs = [each.name for each in defined.inputs], defined.outputs
    if {*given} != {*names} or len(answers) != len(outputs):
        raise InputError(
            f"an answer must be {len(outputs)} arrays, with the inputs {', '.join(names)}, got "
            f"{len(answers)}, with {', '.join(map(str, given))}"
        )
    found = {name: np.asarray(given[name]) for name in names}
    expected = {each.name: np.asarray(a) for each, a in zip(outputs, answers, strict=True)}
    made = [expected[each.name] for each in outputs if not each.read]
    sizes = sizes_of_call(
        defined, [*found.values()], (made if made[1:] else made[0]) if made else None
    )
    for each in outputs:
        if each.read and expected[each.name].shape != found[each.name].shape:
            raise InputError(f"reference and inputs must have {each.name} of one shape")
    pins = {f"{name} == {size}": _REASON for name, size in sizes.items()}
    asked = said.restrictions
    if not isinstance(asked, Mapping):
        asked = [asked] if isinstance(asked, str) or callable(asked) else asked
        asked = dict.fromkeys(asked, "as the kernel's restrictions ask")
    answer, operands = _functions(_written(found, expected, cache), names, [*expected])
    return replace(
        said,
        reference=answer,
        inputs=operands,
        restrictions={**asked, **pins},
        cases=[sizes],
        finite=True,
    )


def _none() -> None:
    """The reference of a kernel whose shapes alone are looked at."""


def _functions(
    path: str, inputs: Sequence[str], outputs: Sequence[str]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A function that gives the answer of a file, and one that gives its operands."""
    given, expected = tuple(inputs), tuple(outputs)

    def answer():  # type: ignore[no-untyped-def]
        with np.load(path) as file:
            found = tuple(file[f"answer {name}"] for name in expected)
        return found if len(found) > 1 else found[0]

    def operands():  # type: ignore[no-untyped-def]
        with np.load(path) as file:
            return {name: file[name] for name in given}

    return answer, operands


def _written(
    inputs: Mapping[str, Any], outputs: Mapping[str, Any], cache: str | Path | None
) -> str:
    """The path of a file with these arrays, which is written unless it is there."""
    arrays = {**inputs, **{f"answer {name}": each for name, each in outputs.items()}}
    digest = hashlib.sha256()
    for name, array in arrays.items():
        if array.dtype.kind not in "fiubc":
            raise InputError(f"{name} must be an array of numbers, got {array.dtype}")
        digest.update(f"{name}\0{array.dtype}\0{array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    folder = CacheLocations.at(cache).root / "own"
    path = folder / f"answer-{digest.hexdigest()[:16]}.npz"
    if not path.is_file():
        try:
            with tempfile.NamedTemporaryFile(dir=private_folder(folder), delete=False) as file:
                np.savez(file, allow_pickle=False, **arrays)
            Path(file.name).replace(path)
        except OSError as error:
            raise CacheError(f"cannot write {path}: {error.strerror or error}") from error
    return str(path)
