"""What is known of family files without reading them again: in the process, and on disk."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.core import session
from autotune.core.errors import CacheError
from autotune.core.facts import FILE, Facts, Stamp, stamps_of, unchanged
from autotune.core.paths import check_trusted, private_folder
from autotune.core.version import __version__
from autotune.families.reading import read_family
from autotune.families.templating import Digested, remember

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.families.family import KernelFamily


@dataclass(frozen=True, slots=True)
class FamilyFile:
    """A family file, and where what it includes is looked up.

    Attributes:
        path: the TOML file.
        templates: folders of templates, first match wins.
        fragments: folders of fragments, first match wins.
        around: further files that decide what is found, as they are now.
        operation: the file of an operation that the family computes with an epilogue; None where
            it is the family of its own operation.
    """

    path: Path
    templates: tuple[Path, ...]
    fragments: tuple[Path, ...]
    around: tuple[Stamp, ...] = ()
    operation: Path | None = None

    @property
    def key(self) -> str:
        """What is kept of the file on disk is kept under this."""
        folders = [list(map(str, each)) for each in (self.templates, self.fragments)]
        about = str(self.path) if self.operation is None else f"{self.path} {self.operation}"
        return json.dumps(["family", __version__, about, folders, self.around])

    def read(self) -> KernelFamily:
        """The family.

        Raises:
            FamilyError: a file does not fit the format.
        """
        return read_family(self.path, self.templates, self.fragments, self.operation)


@dataclass(frozen=True, slots=True)
class FamilyEntry:
    """What lookups need of a family; it holds while its files do not change.

    Attributes:
        file: where it comes from.
        name: what users call it.
        operation: what it computes.
        target: what it runs on.
        digest: of the family file and its templates.
        template: the template's path.
        template_digest: of the template and what it includes.
        epilogue: whether it computes operations with an epilogue too.
        files: the family file and its fragments, as they were.
        template_files: the template and what it includes, as they were.
    """

    file: FamilyFile
    name: str
    operation: str
    target: str
    digest: str
    template: str
    template_digest: str
    epilogue: bool
    files: tuple[Stamp, ...]
    template_files: tuple[Stamp, ...]

    @property
    def holds(self) -> bool:
        """Whether all files are as they were."""
        return unchanged(self.files) and unchanged(self.template_files)

    def read(self) -> KernelFamily:
        """The family, read once a process; its template is not digested again."""
        key = self.file.path, self.file.operation
        known = _FAMILIES.get(key)
        if known is None or (known[0] is not self and known[0] != self):
            digested = Digested(self.template_digest, self.template_files)
            remember(self.template, self.file.templates, digested)
            known = _FAMILIES[key] = self, self.file.read()
        return known[1]


_ENTRIES: dict[FamilyFile, FamilyEntry] = session.keep("entries of families", {}, lasting=True)
_FAMILIES: dict[tuple[Path, Path | None], tuple[FamilyEntry, KernelFamily]] = session.keep(
    "families", {}, lasting=True
)


class Families(Mapping[str, "KernelFamily"]):
    """Families by name, each read when it is asked for.

    Attributes:
        digests: the digest of each, by name.
    """

    def __init__(self, entries: Mapping[str, FamilyEntry]) -> None:
        self._entries = entries
        self.digests: Mapping[str, str] = {name: each.digest for name, each in entries.items()}

    def __getitem__(self, name: str) -> KernelFamily:
        return self._entries[name].read()

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries


def entries_of(files: Sequence[FamilyFile], folder: Path | None = None) -> list[FamilyEntry]:
    """What is known of family files; those of which that no longer holds are read.

    Args:
        files: which ones.
        folder: where it is kept for other processes; None asks nobody.

    Raises:
        FamilyError: a file does not fit the format.
    """
    known = {file: entry for file in files if (entry := _ENTRIES.get(file)) and entry.holds}
    missing = [file for file in files if file not in known]
    facts = None if folder is None or not missing else _trusted(folder)
    kept = {} if facts is None else facts.get(*(file.key for file in missing))
    fresh: dict[str, str] = {}
    for file in missing:
        entry = _parse(file, kept.get(file.key))
        if entry is None or not entry.holds:
            entry = _read(file)
            fresh[file.key] = _text(entry)
        known[file] = _ENTRIES[file] = entry
    if facts is not None and fresh:
        facts.put(fresh)
    return [known[file] for file in files]


def _read(file: FamilyFile) -> FamilyEntry:
    family = file.read()
    entry = FamilyEntry(
        file=file,
        name=family.name,
        operation=family.operation,
        target=family.target,
        digest=family.digest,
        template=family.template,
        template_digest=family.template_digest,
        epilogue=family.epilogue,
        files=stamps_of(family.files),
        template_files=family.template_files,
    )
    _FAMILIES[file.path, file.operation] = entry, family
    return entry


def _trusted(folder: Path) -> Facts | None:
    try:
        check_trusted(private_folder(folder))
    except (OSError, CacheError):  # whoever writes programs there is told
        return None
    return Facts(folder / FILE)


def _text(entry: FamilyEntry) -> str:
    return json.dumps({name: getattr(entry, name) for name in _KEPT})


def _parse(file: FamilyFile, text: str | None) -> FamilyEntry | None:
    if text is None:
        return None
    try:
        kept = json.loads(text)
        files, templates = (
            tuple((str(path), int(changed), int(size)) for path, changed, size in kept[name])
            for name in ("files", "template_files")
        )
        words = {name: str(kept[name]) for name in _WORDS}
        epilogue = kept["epilogue"] is True
    except (ValueError, TypeError, KeyError):
        return None
    return FamilyEntry(
        file=file, **words, epilogue=epilogue, files=files, template_files=templates
    )


_WORDS = (
    "name",
    "operation",
    "target",
    "digest",
    "template",
    "template_digest",
)
_KEPT = (*_WORDS, "epilogue", "files", "template_files")
