"""Results pages from what benchmarks printed: ``python benchmarks/pages.py take NAME...``.

take    run benchmarks of `pages.toml` from a clean commit, keep what they print under
        docs/results/data with its checksum, and put it into their pages
build   put what is kept into the pages again, as after an edit of their text
check   say what does not agree: a checksum, a page, a run that is on no page

A page has, for every run of it, a line ``<!-- printed: NAME -->``; all that follows, up to
``<!-- end -->``, is what the benchmark printed.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
RUNS = Path(__file__).with_name("pages.toml")
PRINTED = re.compile(r"(<!-- printed: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Run:
    """A benchmark that a page shows.

    Attributes:
        name: what `take` and the page call it.
        page: its file in the folder of results.
        command: script and arguments, from the root of the checkout.
        files: what it writes beside what it prints, in the folder of results.
    """

    name: str
    page: str
    command: tuple[str, ...]
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Results:
    """The folder of results: pages, pictures, and in `data` what was printed."""

    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def sums(self) -> Path:
        """As `sha256sum -c` reads it, from the folder of results."""
        return self.data / "SHA256SUMS"

    def printed(self, run: Run) -> Path:
        return self.data / f"{run.name}.txt"

    def kept(self, run: Run) -> list[Path]:
        """The files of a run."""
        return [self.printed(run), *(self.folder / name for name in run.files)]

    def read_sums(self) -> dict[str, str]:
        """Checksums by file."""
        lines = self.sums.read_text().splitlines() if self.sums.exists() else []
        return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}

    def keep(self, run: Run, text: str) -> None:
        """Keep what a run printed, with the checksums of all its files."""
        self.data.mkdir(exist_ok=True)
        self.printed(run).write_text(text)
        sums = self.read_sums()
        for path in self.kept(run):
            sums[str(path.relative_to(self.folder))] = digest(path)
        lines = (f"{each}  {name}\n" for name, each in sorted(sums.items()))
        self.sums.write_text("".join(lines))

    def built(self, page: str) -> str:
        """The text of a page with all that is kept for it."""

        def fill(found: re.Match[str]) -> str:
            path = self.data / f"{found[2]}.txt"
            return found[1] + (path.read_text() if path.exists() else "") + found[3]

        return PRINTED.sub(fill, (self.folder / page).read_text())


def read_runs(path: Path = RUNS) -> list[Run]:
    """The runs of a file, in its order."""
    tables = tomllib.loads(path.read_text())
    return [
        Run(name, each["page"], tuple(shlex.split(each["command"])), tuple(each.get("files", ())))
        for name, each in tables.items()
    ]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def faults(results: Results, runs: Sequence[Run]) -> Iterator[str]:
    """What does not agree, a line each."""
    sums = results.read_sums()
    for run in runs:
        named = {found[2] for found in PRINTED.finditer((results.folder / run.page).read_text())}
        if run.name not in named:
            yield f"{run.page} has no line <!-- printed: {run.name} -->"
        for path in results.kept(run):
            name = str(path.relative_to(results.folder))
            if name in sums and (not path.exists() or digest(path) != sums[name]):
                yield f"{name} is not what was kept: take {run.name} again"
            elif name not in sums and path == results.printed(run) and path.exists():
                yield f"{name} has no checksum: take {run.name} again"
    for page in dict.fromkeys(run.page for run in runs):
        if results.built(page) != (results.folder / page).read_text():
            yield f"{page} is not what was printed: build it"


def take(results: Results, run: Run) -> None:
    """Run a benchmark and keep what it prints.

    Raises:
        SystemExit: the checkout has changes, so that no commit says what was measured; or the
            benchmark failed.
    """
    status = ["git", "status", "--porcelain", "--", ".", ":!docs/results"]
    changed = subprocess.run(status, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    if changed:
        raise SystemExit(f"the checkout must be a clean commit, got changes:\n{changed}")
    command = [sys.executable, *run.command]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{shlex.join(run.command)} ended with {done.returncode}")
    shown = f"    python {shlex.join(run.command)}\n\n"
    results.keep(run, shown + done.stdout.strip() + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("take", "build", "check"))
    parser.add_argument("names", nargs="*", metavar="NAME", help="runs to take")
    args = parser.parse_args()

    results, runs = Results(ROOT / "docs" / "results"), read_runs()
    known = {run.name: run for run in runs}
    if args.what == "take":
        for name in args.names or known:
            if name not in known:
                parser.error(f"NAME must be one of {', '.join(known)}, got {name}")
        for name in args.names or known:
            take(results, known[name])
    if args.what != "check":
        for page in dict.fromkeys(run.page for run in runs):
            (results.folder / page).write_text(results.built(page))
    found = list(faults(results, runs))
    print("\n".join(found) or "pages and data agree")
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
