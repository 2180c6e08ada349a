"""Data sets of this project: recordings with raw samples, shipped as files.

    from autotune import datasets

    recorded = datasets.load("zen4-blocked-256")  # a RecordedSpace, as `read_recorded` gives it

"zen4-survey" is what a survey measured instead: programs on many shapes, medians alone.

They are licensed under CC-BY-4.0. ``datasets/index.json`` describes each and has its checksum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.core import checks
from autotune.core.errors import InputError, UnknownNameError
from autotune.core.paths import data_dir
from autotune.core.suggestions import must_be
from autotune.research import RecordedSpace, read_recorded
from autotune.store import strict_json

__all__ = ["DataSet", "described", "load", "names", "path"]


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set.

    Attributes:
        file: its name in the folder.
        sha256: of the file.
        description: what was measured, where and when.
        shapes: problems that it is of. Of a survey there are many, and sizes are parameters.
    """

    file: checks.Line
    sha256: checks.Sha256
    description: checks.Line
    shapes: checks.Whole = 1


def described() -> Mapping[str, DataSet]:
    """All data sets by name.

    Raises:
        AutotuneError: the package was installed without them.
    """
    index = strict_json.parse((data_dir("datasets") / "index.json").read_text("utf-8"))
    found: dict[str, DataSet] = checks.checked(index["datasets"], dict[str, DataSet])
    return found


def names() -> list[str]:
    """Names of the data sets."""
    return list(described())


def path(name: str) -> Path:
    """The file of a data set, for whatever reads or converts recordings.

    Raises:
        UnknownNameError: there is none of that name.
        InputError: its content is not what was shipped.
        AutotuneError: the package was installed without data sets.
    """
    known = described()
    if name not in [*known]:  # which may not be hashable
        raise UnknownNameError(must_be("a data set", name, known))
    file = data_dir("datasets") / known[name].file
    if hashlib.sha256(file.read_bytes()).hexdigest() != known[name].sha256:
        raise InputError(f"{file} is not what was shipped: its checksum differs; install again")
    return file


def load(name: str) -> RecordedSpace:
    """The recorded space of a data set.

    Raises:
        UnknownNameError: there is none of that name.
        InputError: its content is not what was shipped.
        AutotuneError: the package was installed without data sets.
    """
    return read_recorded(path(name))
