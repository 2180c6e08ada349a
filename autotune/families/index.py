"""Index of family files: the digests that look-ups need, kept in the process and on disk."""

from __future__ import annotations

import itertools
import json
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from autotune.core import session
from autotune.core.errors import CacheError
from autotune.core.facts import FILE, Facts, Stamp, stamps_of, unchanged
from autotune.core.paths import check_trusted, private_folder
from autotune.core.version import __version__
from autotune.families.heading import Heading, is_foreign, read_heading
from autotune.families.reading import read_body
from autotune.families.templating import Digested, remember

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.families.family import KernelFamily, Language


@dataclass(frozen=True, slots=True)
class FamilyFile:
    """A family file, and where what it includes is looked up.

    Attributes:
        path: the TOML file.
        templates: folders of templates, first match wins.
        fragments: folders of fragments, first match wins.
        around: further files that decide what is found, as they are now.
        operation: the file of an operation that the family computes with an epilogue, or the
            name of a layer; None where it is the family of its own operation.
        shipped: whether it is one of this project's, which need no check before they are used.
    """

    path: Path
    templates: tuple[Path, ...]
    fragments: tuple[Path, ...]
    around: tuple[Stamp, ...] = ()
    operation: Path | str | None = None
    shipped: bool = False

    @property
    def places(self) -> tuple[Path, tuple[Path, ...], tuple[Path, ...], Path | str | None]:
        """The arguments of `read_heading`."""
        return self.path, self.templates, self.fragments, self.operation

    @property
    def key(self) -> str:
        """Key of the file's facts on disk."""
        folders = [list(map(str, each)) for each in (self.templates, self.fragments)]
        about = str(self.path) if self.operation is None else f"{self.path} {self.operation}"
        return json.dumps(["family", __version__, about, folders, self.around])


@dataclass(frozen=True, slots=True)
class FamilyEntry:
    """The part of a family that look-ups need; it holds while its files do not change.

    Attributes:
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

    name: str
    operation: str
    target: str
    digest: str
    template: str
    template_digest: str
    epilogue: bool
    files: tuple[Stamp, ...]
    template_files: tuple[Stamp, ...]

    @classmethod
    def of(cls, family: KernelFamily | Heading) -> FamilyEntry:
        """The entry of a family that was read just now."""
        same = {name: getattr(family, name) for name in _FIELDS if name != "files"}
        return cls(**same, files=stamps_of(family.files))

    @classmethod
    def parse(cls, text: str | None) -> FamilyEntry | None:
        """The entry that was kept as JSON; None where it is none."""
        try:
            kept: dict[str, Any] = json.loads(text or "")
            for name in ("files", "template_files"):
                stamps = kept[name]
                kept[name] = tuple((str(path), int(at), int(size)) for path, at, size in stamps)
            return cls(**kept)
        except (ValueError, TypeError, KeyError):
            return None

    @property
    def text(self) -> str:
        """The entry as JSON."""
        return json.dumps({name: getattr(self, name) for name in _FIELDS})

    @property
    def holds(self) -> bool:
        """Return whether all files are as they were."""
        return unchanged(self.files) and unchanged(self.template_files)


_FIELDS = tuple(each.name for each in fields(FamilyEntry))
_ENTRIES: dict[FamilyFile, FamilyEntry] = session.keep("entries of families", {}, lasting=True)
_FAMILIES: dict[FamilyFile, tuple[FamilyEntry, KernelFamily | Heading]] = session.keep(
    "families", {}, lasting=True
)


@dataclass(frozen=True, slots=True)
class Indexed:
    """A family file with its entry."""

    file: FamilyFile
    entry: FamilyEntry
    languages: Mapping[str, Language]

    def read(self) -> KernelFamily:
        """The family, read once a process; its template is not digested again."""
        known = _FAMILIES.get(self.file)
        if known is None or (known[0] is not self.entry and known[0] != self.entry):
            digested = Digested(self.entry.template_digest, self.entry.template_files)
            remember(self.entry.template, self.file.templates, digested)
            known = self.entry, read_heading(*self.file.places, languages=self.languages)
        family = known[1]
        if isinstance(family, Heading):
            family = read_body(family)
            _FAMILIES[self.file] = self.entry, family
        return family


class Families(Mapping[str, "KernelFamily"]):
    """Families by name, each read when it is asked for.

    Attributes:
        digests: the digest of each, by name.
    """

    def __init__(self, indexed: Mapping[str, Indexed]) -> None:
        self._indexed = indexed
        self.digests: Mapping[str, str] = {
            name: each.entry.digest for name, each in indexed.items()
        }

    def __getitem__(self, name: str) -> KernelFamily:
        return self._indexed[name].read()

    def __iter__(self) -> Iterator[str]:
        return iter(self._indexed)

    def only(self, names: Container[str]) -> Families:
        """Those of some names."""
        return Families({name: each for name, each in self._indexed.items() if name in names})

    def __len__(self) -> int:
        return len(self._indexed)

    def __contains__(self, name: object) -> bool:
        return name in self._indexed


def index(
    files: Sequence[FamilyFile],
    languages: Mapping[str, Language],
    folder: Path | None = None,
    *,
    strict: bool = True,
) -> list[Indexed]:
    """The entries of family files; those that hold no more are read again.

    Args:
        files: which ones.
        languages: of the targets, by name.
        folder: where entries are kept for other processes; None keeps none.
        strict: whether files of targets that `languages` lacks are refused, not passed over.

    Raises:
        FamilyError: a file does not fit the format.
    """
    known = {file: entry for file in files if (entry := _ENTRIES.get(file)) is not None}
    looked_at = [(*entry.files, *entry.template_files) for entry in known.values()]
    if not unchanged(itertools.chain.from_iterable(looked_at)):
        known = {file: entry for file, entry in known.items() if entry.holds}
    missing = [file for file in files if file not in known]
    facts = None if folder is None or not missing else _trusted(folder)
    kept = {} if facts is None else facts.get(*(file.key for file in missing))
    fresh: dict[str, str] = {}
    for file in missing:
        entry = FamilyEntry.parse(kept.get(file.key))
        if entry is None or not entry.holds:
            if not strict and is_foreign(file.path, languages):
                continue
            head = read_heading(*file.places, languages=languages)
            family = head if file.shipped else read_body(head)
            entry = FamilyEntry.of(family)
            _FAMILIES[file] = entry, family
            fresh[file.key] = entry.text
        known[file] = _ENTRIES[file] = entry
    if facts is not None and fresh:
        facts.put(fresh)
    return [Indexed(file, known[file], languages) for file in files if file in known]


def _trusted(folder: Path) -> Facts | None:
    try:
        check_trusted(private_folder(folder))
    except (OSError, CacheError):  # whoever writes programs there is told
        return None
    return Facts(folder / FILE)
