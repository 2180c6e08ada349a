"""Results pages from what benchmarks printed: ``python benchmarks/pages.py take NAME...``.

take    run benchmarks of `pages.toml` from a clean commit, keep what they print under
        docs/results/data with its checksum, and put it into their pages
print   run one and print what is to be kept, as on another machine; where that has no history,
        ``AUTOTUNE_COMMIT`` says of which commit it has the files
keep    keep what `print` printed elsewhere, NAME TEXT [FILE...], with the files that it wrote
build   put what is kept into the pages again, as after an edit of their text
check   say what does not agree: a checksum, a page, a run that is on no page

A page shows every run of it between one of these lines and ``<!-- end -->``:

    <!-- printed: NAME -->       all that the benchmark printed
    <!-- tables: NAME -->        its tables (`tables` and `without` in `pages.toml` choose)
    <!-- rows: NAME NAME... -->  a row for each element type of runs of `every_shape.py`

What somebody wrote down before stands between ``<!-- by hand until: NAME -->`` and
``<!-- end -->``, and goes when the run is kept. Between ``<!-- runs -->`` and ``<!-- end -->`` is
the list of pages and runs. A command may have ``$WORDS``, for what lies elsewhere on every
machine: variables of the environment.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
RUNS = Path(__file__).with_name("pages.toml")
SHOWN = re.compile(
    r"(<!-- (printed|tables|rows): (\S+(?: \S+)*) -->\n).*?(<!-- end -->)", re.DOTALL
)
BY_HAND = re.compile(r"<!-- by hand until: (\S+) -->\n.*?<!-- end -->\n\n?", re.DOTALL)
LIST = re.compile(r"(<!-- runs -->\n).*?(<!-- end -->)", re.DOTALL)
TAKEN = re.compile(r"^- date: (\S+), commit (\S+)", re.MULTILINE)
"""What every benchmark says in its first lines."""
KERNELS = {
    "**By kind**": "served",
    "Tuned beside the peer:": "tuned",
    "Untuned, of the tuned kernel's speed:": "served, of tuned",
}
"""Kernels that a table by kind is of, by the line before it."""


@dataclass(frozen=True, slots=True)
class Run:
    """A benchmark that a page shows.

    Attributes:
        name: what `take` and the page call it.
        page: its file in the folder of results.
        command: script and arguments, from the root of the checkout.
        files: what it writes beside what it prints, in the folder of results.
        tables: a word in the head of every table that `tables:` shows; empty for all of them.
        without: columns that `tables:` leaves out.
        only: words, one of which a row's first cell must have; empty for all rows.
    """

    name: str
    page: str
    command: str
    files: tuple[str, ...]
    tables: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The line that what is kept begins with."""
        return f"    python {self.command}"

    def words(self) -> list[str]:
        """The command with the environment's variables in it.

        Raises:
            SystemExit: one is not set.
        """
        text = os.path.expandvars(self.command)
        if "$" in text:
            raise SystemExit(f"{self.name} needs a variable of the environment: {self.command}")
        return [sys.executable, *shlex.split(text)]


@dataclass(frozen=True, slots=True)
class Results:
    """The folder of results: pages, pictures, and in `data` what was printed."""

    folder: Path
    runs: Sequence[Run]

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def sums(self) -> Path:
        """As `sha256sum -c` reads it, from the folder of results."""
        return self.data / "SHA256SUMS"

    @property
    def pages(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("*.md"))

    def printed(self, name: str) -> Path:
        """Where what a run printed is kept."""
        return self.data / f"{name}.txt"

    def kept(self, run: Run) -> list[Path]:
        """The files of a run."""
        return [self.printed(run.name), *(self.folder / name for name in run.files)]

    def read_sums(self) -> dict[str, str]:
        """Checksums by file."""
        lines = self.sums.read_text().splitlines() if self.sums.exists() else []
        return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}

    def keep(self, run: Run, text: str) -> None:
        """Keep what a run printed, with the checksums of all its files."""
        self.data.mkdir(exist_ok=True)
        self.printed(run.name).write_text(text)
        sums = self.read_sums()
        for path in self.kept(run):
            sums[str(path.relative_to(self.folder))] = digest(path)
        lines = (f"{each}  {name}\n" for name, each in sorted(sums.items()))
        self.sums.write_text("".join(lines))

    def built(self, page: str) -> str:
        """The text of a page with all that is kept for it."""

        known = {run.name: run for run in self.runs}

        def fill(found: re.Match[str]) -> str:
            names = found[3].split()
            for name in names:
                if not self.printed(name).exists():
                    return f"{found[1]}Run `{name}` was not taken yet.\n{found[4]}"
            if found[2] == "printed":
                text = self.printed(found[3]).read_text()
            elif found[2] == "tables":
                text = self.tables(known[found[3]])
            else:
                text = self.rows([known[name] for name in names])
            return f"{found[1]}{text}{found[4]}"

        def leave(found: re.Match[str]) -> str:
            return "" if self.printed(found[1]).exists() else found[0]

        text = SHOWN.sub(fill, BY_HAND.sub(leave, (self.folder / page).read_text()))
        return LIST.sub(lambda found: f"{found[1]}{self.listed()}{found[2]}", text)

    def build(self) -> None:
        """Put what is kept into the pages."""
        for page in self.pages:
            (self.folder / page).write_text(self.built(page))

    def tables(self, run: Run) -> str:
        """The tables of a run below its command, date, commit and a link to all of it."""
        link = f"[all that was printed](data/{run.name}.txt)"
        text = [f"`python {run.command}`, {self.taken(run)}, {link}:\n"]
        for caption, table in tables(self.printed(run.name).read_text()):
            if not run.tables or any(word in table[0] for word in run.tables):
                head, rule, *rows = [cells(line) for line in table]
                kept = [at for at, name in enumerate(head) if name not in run.without]
                if run.only:
                    rows = [row for row in rows if any(word in row[0] for word in run.only)]
                rows = [head, rule, *rows]
                lines = [
                    f"| {' | '.join(row[at] for at in kept if at < len(row))} |" for row in rows
                ]
                text += [*([caption] if caption else []), "\n".join(lines) + "\n"]
        return "\n".join(text)

    def rows(self, runs: Sequence[Run]) -> str:
        """A table of runs of `every_shape.py`: a row for each of their tables by kind."""
        head = "run, type, kernels, shapes, geometric mean, quartiles, least, kinds below 1"
        lines = [f"| {head.replace(', ', ' | ')} | last taken |", "|---" * 9 + "|"]
        for run in runs:
            text = self.printed(run.name).read_text()
            dtypes = iter(dict.fromkeys(re.findall(r"^- (\w+), seed", text, re.MULTILINE)))
            link, dtype = f"[{run.name.removeprefix('every-shape-')}](data/{run.name}.txt)", ""
            for caption, table in tables(text):
                if (kernels := KERNELS.get(caption.strip())) is None:
                    continue
                dtype = next(dtypes) if kernels == "served" else dtype
                *kinds, every = [cells(line.replace("*", "")) for line in table[2:]]
                slow = [f"{kind} {mean}" for kind, _, mean, *_ in kinds if float(mean) < 1]
                below = "" if kernels == "served, of tuned" else ", ".join(slow)
                last = self.taken(run).rpartition(", ")[2]
                row = (link, dtype, kernels, *every[1:], below, last)
                lines.append(f"| {' | '.join(row)} |")
        return "".join(f"{line}\n" for line in lines)

    def listed(self) -> str:
        """A table of all pages: their runs, and of which commits what is kept is."""
        lines = ["| page | run | taken |", "|---|---|---|"]
        for page in self.pages:
            runs = [run for run in self.runs if run.page == page]
            link = f"[{page.removesuffix('.md')}]({page})"
            lines += [f"| {link} | `{run.name}` | {self.taken(run)} |" for run in runs]
            if not runs and page != "README.md":
                lines.append(f"| {link} | none: written by hand | |")
        return "".join(f"{line}\n" for line in lines)

    def taken(self, run: Run) -> str:
        """When, and of which commits."""
        path = self.printed(run.name)
        if not path.exists():
            return "not yet"
        found = dict.fromkeys(TAKEN.findall(path.read_text()))
        return ", ".join(f"{date} at {commit}" for date, commit in found)


def read_runs(path: Path = RUNS) -> list[Run]:
    """The runs of a file, in its order."""
    runs = tomllib.loads(path.read_text())
    return [
        Run(
            name,
            table["page"],
            " ".join(table["command"].split()),
            *(tuple(table.get(key, ())) for key in ("files", "tables", "without", "only")),
        )
        for name, table in runs.items()
    ]


def tables(text: str) -> Iterator[tuple[str, list[str]]]:
    """The tables of a text, and before each the line that says what it is of, if one does."""
    last, table = "", []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            table.append(line)
        elif table:
            yield last, table
            last, table = "", []
        if line.startswith("#"):
            last = f"**{line.lstrip('# ')}**\n"
        elif line and not line.startswith(("|", "- ", " ")):
            last = f"{line}\n"


def cells(line: str) -> list[str]:
    """The cells of a row of a table."""
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def faults(results: Results) -> Iterator[str]:
    """What does not agree, a line each."""
    sums = results.read_sums()
    for run in results.runs:
        shown = SHOWN.finditer((results.folder / run.page).read_text())
        if run.name not in {name for found in shown for name in found[3].split()}:
            yield f"{run.page} has no line <!-- printed: {run.name} -->"
        for path in results.kept(run):
            name = str(path.relative_to(results.folder))
            if name in sums and (not path.exists() or digest(path) != sums[name]):
                yield f"{name} is not what was kept: take {run.name} again"
            elif name not in sums and path == results.printed(run.name) and path.exists():
                yield f"{name} has no checksum: take {run.name} again"
    for page in results.pages:
        if results.built(page) != (results.folder / page).read_text():
            yield f"{page} is not what was printed: build it"


def take(results: Results, run: Run) -> None:
    """Run a benchmark and keep what it prints.

    Raises:
        SystemExit: the checkout has changes, before or when the benchmark has ended, so that no
            commit says what was measured; or the benchmark failed.
    """
    status = git("status", "--porcelain", "--", ".", ":!docs/results")
    status.check_returncode()
    if changed := status.stdout:
        raise SystemExit(f"the checkout must be a clean commit, got changes:\n{changed}")
    text = f"{run.shown}\n\n{execute(run, subprocess.PIPE).strip()}\n"
    if wrong := unknown_commit(text):
        print(text)  # what took long is not lost
        raise SystemExit(f"{run.name} {wrong}: did files change while it ran?")
    results.keep(run, text)


def keep(results: Results, run: Run, printed: Path, files: Sequence[Path]) -> None:
    """Keep what a run printed and wrote on another machine.

    Raises:
        SystemExit: it is not what the run prints, does not say of which commit of this project
            it is, or has not the run's files beside it.
    """
    text = printed.read_text()
    if not text.startswith(f"{run.shown}\n"):
        raise SystemExit(f"{printed} must begin with the command of {run.name}:\n{run.shown}")
    if wrong := unknown_commit(text):
        raise SystemExit(f"{printed} {wrong}: set AUTOTUNE_COMMIT where it is printed")
    places = {Path(name).name: results.folder / name for name in run.files}
    given = {path.name: path for path in files}
    if given.keys() != places.keys():
        wanted = ", ".join(places) or "none"
        raise SystemExit(f"the files of {run.name} are {wanted}, got {', '.join(given) or 'none'}")
    results.data.mkdir(exist_ok=True)
    for name, path in given.items():
        places[name].write_bytes(path.read_bytes())
    results.keep(run, f"{text.rstrip()}\n")


def unknown_commit(text: str) -> str:
    """What is wrong with the commits that a text names; empty where all are of this project."""
    found = TAKEN.findall(text)
    for _, commit in found:
        if not git("rev-parse", "--verify", f"{commit}^{{commit}}").stdout.startswith(commit):
            return f"must name commits of this project, got {commit}"
    return "" if found else "must name a commit"


def execute(run: Run, out: int | None = None) -> str:
    """Run a benchmark of this checkout's package; what it printed, where that is piped.

    Its cache is empty at first: what this machine has learned is nobody else's.

    Raises:
        SystemExit: it failed.
    """
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryDirectory() as cache:
        own = {"PYTHONPATH": os.pathsep.join(paths), "AUTOTUNE_CACHE": cache}
        environment = os.environ | own
        done = subprocess.run(run.words(), cwd=ROOT, env=environment, stdout=out, text=True)
    if done.returncode:
        raise SystemExit(f"{run.command} ended with {done.returncode}")
    return done.stdout or ""


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("take", "print", "keep", "build", "check"))
    parser.add_argument("names", nargs="*", metavar="NAME", help="runs; for keep a run and files")
    args = parser.parse_args()

    results = Results(ROOT / "docs" / "results", read_runs())
    known = {run.name: run for run in results.runs}
    wanted = args.names if args.what == "take" else args.names[:1]
    for name in wanted:
        if name not in known:
            parser.error(f"NAME must be one of {', '.join(known)}, got {name}")
    match args.what, args.names:
        case "take", [_, *_]:
            for name in wanted:
                take(results, known[name])
        case "print", [name]:
            print(f"{known[name].shown}\n", flush=True)
            execute(known[name])
            return
        case "keep", [name, printed, *files]:
            keep(results, known[name], Path(printed), [Path(file) for file in files])
        case "build" | "check", []:
            pass
        case _:
            parser.error("give take NAME..., print NAME, keep NAME TEXT [FILE...], build or check")
    if args.what != "check":
        results.build()
    found = list(faults(results))
    print("\n".join(found) or "pages and data agree")
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
