"""Builds the documentation's site from the pages of the repository; warnings are errors.

Pages lie where they belong (`docs/`, and `README.md` files beside what they describe), and link to
each other as they do in the repository. A site generator wants one folder: this lays out a copy of
all pages, and of what they link to, as they lie here. A name of the API gets a page of its own.

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

ROOT = Path(__file__).parents[2]
CONFIGURATION = Path(__file__).with_name("zensical.toml")
FOLDERS = ("docs", "search_spaces", "templates")
API = Path("docs") / "site" / "api.md"
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
_NAME = re.compile(r"^::: (\S+)\n((?:    .*\n)*)\n?", re.MULTILINE)
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)


def pages(root: Path = ROOT) -> Iterator[Path]:
    """Every page: the Markdown files of the root and of the folders that people read.

    The list of the API's names is none: its pages are made of docstrings.
    """
    yield from sorted(root.glob("*.md"))
    for folder in FOLDERS:
        found = sorted((root / folder).rglob("*.md"))
        yield from (page for page in found if page != root / API)


def linked(page: Path) -> Iterator[Path]:
    """Files that a page links to or shows."""
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve()
        if "://" not in target and path.is_file():
            yield path


def lay_out(folder: Path) -> None:
    """Copy the pages, and what they link to, as they lie in the repository."""
    found = list(pages())
    for file in {*found, *(target for page in found for target in linked(page))}:
        copy = folder / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)


def write_api(folder: Path, source: Path) -> list[str]:
    """Give each name of the API a page of its own, and the API's page a list of them.

    Args:
        folder: the copy of the pages.
        source: where the package is.

    Returns:
        Lines for the navigation: the sections of the API's page with their names.
    """
    import griffe  # late: of the documentation's tools, which tests of pages do without

    package = griffe.load("autotune", search_paths=[source], resolve_aliases=True)
    page = folder / API
    text, navigation = page.read_text(encoding="utf-8"), []
    for section in re.split(r"^(?=## )", text, flags=re.MULTILINE):
        title = _SECTION.match(section)
        entries = []
        for found in _NAME.finditer(section):
            name = found[1].removeprefix("autotune.")
            last = name.rpartition(".")[2]
            # `kernel` and `Kernel` would be one file where case does not count.
            file = f"{last if last.islower() else f'{last}-class'}.md"
            place = page.with_suffix("") / file
            place.parent.mkdir(exist_ok=True)
            place.write_text(found[0], encoding="utf-8")
            docstring = package[name].docstring
            says = docstring.value.partition("\n")[0] if docstring else ""
            text = text.replace(found[0], f"- [`{found[1]}`](api/{file}): {says}\n")
            entries.append(f'{{ "{last}" = "docs/site/api/{file}" }}')
        if title and entries:
            navigation.append(f'{{ "{title[1]}" = [{", ".join(entries)}] }},')
    page.write_text(text, encoding="utf-8")
    return navigation


def build(output: Path) -> subprocess.CompletedProcess[str]:
    """Build the site into a folder, which must not be there yet; see `returncode`."""
    with tempfile.TemporaryDirectory() as temporary:
        workplace = Path(temporary)
        lay_out(workplace / "pages")
        names = "".join(f"    {line}\n" for line in write_api(workplace / "pages", ROOT))
        overview = '{ "Python" = "docs/site/api.md" }'
        python = f'{{ "Python" = [ {{ "Overview" = "docs/site/api.md" }},\n{names}] }}'
        text = CONFIGURATION.read_text(encoding="utf-8").replace(overview, python)
        (workplace / CONFIGURATION.name).write_text(text, encoding="utf-8")
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]  # for mkdocstrings
        done = subprocess.run(
            [sys.executable, "-m", "zensical", "build", "--strict"],
            cwd=workplace,
            env={**os.environ, "NO_COLOR": "1", "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            shutil.copytree(workplace / "site", output)
    return done


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
