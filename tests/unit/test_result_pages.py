"""Results pages say what benchmarks printed, and files are what was kept."""

from __future__ import annotations

from pathlib import Path

import pages
import pytest
from pages import Results, Run, faults, read_runs

PAGE = "# A page\n\n<!-- printed: one -->\n<!-- end -->\n\nAnd more.\n"


@pytest.fixture
def results(tmp_path: Path) -> Results:
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "one.png").write_bytes(b"picture")
    return Results(tmp_path)


ONE = Run("one", "page.md", ("script.py",), ("one.png",))


def test_pages_and_data_of_the_project_agree() -> None:
    assert list(faults(Results(pages.ROOT / "docs" / "results"), read_runs())) == []


def test_what_was_printed_is_put_into_its_page(results: Results) -> None:
    results.keep(ONE, "| a | b |\n")
    page = results.folder / "page.md"
    page.write_text(results.built("page.md"))
    assert "<!-- printed: one -->\n| a | b |\n<!-- end -->\n\nAnd more." in page.read_text()
    assert list(faults(results, [ONE])) == []
    results.keep(ONE, "| c |\n")
    assert list(faults(results, [ONE])) == ["page.md is not what was printed: build it"]
    page.write_text(results.built("page.md"))
    assert list(faults(results, [ONE])) == []


def test_what_was_changed_is_found(results: Results) -> None:
    results.keep(ONE, "| a |\n")
    (results.folder / "page.md").write_text(results.built("page.md"))
    (results.folder / "one.png").write_bytes(b"another")
    assert list(faults(results, [ONE])) == ["one.png is not what was kept: take one again"]
    (results.folder / "one.png").write_bytes(b"picture")
    results.printed(ONE).write_text("| b |\n")
    assert "data/one.txt is not what was kept: take one again" in list(faults(results, [ONE]))


def test_a_run_without_a_place_is_found(results: Results) -> None:
    other = Run("two", "page.md", ("script.py",), ())
    assert list(faults(results, [other])) == ["page.md has no line <!-- printed: two -->"]


def test_a_checkout_with_changes_is_refused(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import subprocess

    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "new.py").write_text("")
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match=r"must be a clean commit, got changes:\n.*new\.py"):
        pages.take(results, ONE)
