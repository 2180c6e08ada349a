"""Builds the documentation's site from the pages of the repository; warnings are errors.

Pages lie where they belong (`docs/`, and `README.md` files beside what they describe), and link to
each other as they do in the repository. A site generator wants one folder: this lays out a copy of
all pages, and of what they link to, as they lie here, so that every relative link stays right.

    python docs/site/build_site.py --output site
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from laying_out import told_apart, write_api

ROOT = Path(__file__).parents[2]
CONFIGURATION = Path(__file__).with_name("zensical.toml")
FOLDERS = ("docs", "search_spaces", "templates")
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")


def pages(root: Path = ROOT) -> Iterator[Path]:
    """Every page: the Markdown files of the root and of the folders that people read."""
    yield from sorted(root.glob("*.md"))
    for folder in FOLDERS:
        yield from sorted((root / folder).rglob("*.md"))


def linked(page: Path) -> Iterator[Path]:
    """Files that a page links to or shows."""
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve()
        if "://" not in target and path.is_file():
            yield path


def lay_out(folder: Path) -> None:
    """Copy the pages, and what they link to, as they lie in the repository."""
    found = list(pages())
    for file in {*found, *(each for page in found for each in linked(page))}:
        copy = folder / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
        if file.suffix == ".md":
            copy.write_text(told_apart(file.read_text(encoding="utf-8")), encoding="utf-8")


def build(output: Path) -> subprocess.CompletedProcess[str]:
    """Build the site into a folder, which must not be there yet; see `returncode`."""
    with tempfile.TemporaryDirectory() as temporary:
        workplace = Path(temporary)
        lay_out(workplace / "pages")
        names = "".join(f"    {line}\n" for line in write_api(workplace / "pages", ROOT))
        overview = '{ "Python" = "docs/api.md" }'
        python = f'{{ "Python" = [ {{ "Overview" = "docs/api.md" }},\n{names}] }}'
        text = CONFIGURATION.read_text(encoding="utf-8").replace(overview, python)
        (workplace / CONFIGURATION.name).write_text(text, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "zensical", "build", "--strict"],
            cwd=workplace,
            # Where mkdocstrings finds the package, whatever is installed.
            env={
                **os.environ,
                "NO_COLOR": "1",
                "PYTHONPATH": os.pathsep.join([str(ROOT), *_python_path()]),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            shutil.copytree(workplace / "site", output)
    return done


def _python_path() -> list[str]:
    return [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="builds the documentation's site")
    parser.add_argument("--output", type=Path, default=ROOT / "site", help="a new folder")
    output = parser.parse_args().output
    if output.exists():
        parser.error(f"{output} is there already: remove it, or name another folder")
    done = build(output)
    print(done.stdout + done.stderr, end="", file=sys.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
