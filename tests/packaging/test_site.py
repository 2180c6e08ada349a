"""The documentation's site: it builds without a warning, and everything in it leads somewhere."""

from __future__ import annotations

import html
import importlib.util
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from build_site import API, ROOT, build, pages

import autotune

MACHINE_PATH = re.compile(r"file://|/(?:home|root|Users|work|tmp|mnt)/\w[\w./-]*")

pytestmark = pytest.mark.slow


@dataclass
class Page(HTMLParser):
    """What a built page offers and refers to.

    Attributes:
        anchors: ids that a link may name.
        links: what it links to or loads.
    """

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for module in ("zensical", "mkdocstrings_handlers"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed: pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("documentation") / "site"
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def built(site: Path) -> dict[Path, Page]:
    read = {}
    for path in sorted(site.rglob("*.html")):
        read[path] = Page()
        read[path].feed(path.read_text(encoding="utf-8"))
    return read


def test_every_page_is_there(site: Path) -> None:
    for page in pages():
        place = site / page.relative_to(ROOT)
        names = [place.with_suffix("") / "index.html", place.with_name("index.html")]
        assert any(name.is_file() for name in names), page
    assert (site / "index.html").is_file()


def test_every_page_is_in_the_navigation() -> None:
    configuration = (ROOT / "docs" / "site" / "zensical.toml").read_text(encoding="utf-8")
    named = set(re.findall(r'= "([^"]+\.md)"', configuration))
    assert named == {page.relative_to(ROOT).as_posix() for page in (*pages(), ROOT / API)}


def test_every_name_of_the_api_has_a_page_with_a_wrapped_signature(site: Path) -> None:
    names = re.findall(r"^::: (\S+)", (ROOT / API).read_text(), re.MULTILINE)
    api = site / API.with_suffix("")
    overview = (api / "index.html").read_text()
    for name in names:
        [place] = re.findall(rf'href="([^"]+)"[^>]*><code>{re.escape(name)}</code>', overview)
        page = (api / place / "index.html").read_text()
        assert f'id="{name}"' in page, name
        for signature in re.findall(r'<div class="doc-signature.*?</div>', page, re.DOTALL):
            lines = html.unescape(re.sub("<[^>]+>", "", signature)).splitlines()
            assert max(map(len, lines)) <= 88, (name, lines)


def anchors(built: dict[Path, Page], path: Path) -> set[str]:
    return built[path].anchors if path in built else set()


def test_every_link_leads_somewhere(site: Path, built: dict[Path, Page]) -> None:
    broken = []
    for path, page in built.items():
        if path.name == "404.html":  # its links are from the root of wherever it is served
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target = target / "index.html"
            if not target.is_file() or not target.is_relative_to(site):
                broken.append(f"{path.relative_to(site)}: {link}")
            elif parts.fragment and unquote(parts.fragment) not in anchors(built, target):
                broken.append(f"{path.relative_to(site)}: {link} (no such anchor)")
    assert not broken, "\n".join(broken)


def test_public_names_are_documented(site: Path, built: dict[Path, Page]) -> None:
    pages = (built[path] for path in (site / API.with_suffix("")).rglob("index.html"))
    anchors = set().union(*(page.anchors for page in pages))
    for name in set(autotune.__all__) - {"__version__", "AutotuneError", "NotTunedError"}:
        assert f"autotune.{name}" in anchors
    assert {"autotune.core.errors.AutotuneError", "autotune.core.errors.NotTunedError"} <= anchors


def test_nothing_tells_of_the_machine_it_was_built_on(site: Path) -> None:
    found = {
        f"{path.relative_to(site)}: {match[0]}"
        for path in site.rglob("*.html")
        for match in MACHINE_PATH.finditer(path.read_text(encoding="utf-8"))
    }
    assert not found
