"""Portfolios as documents and in the cache: nothing of them is lost, nothing strange is taken."""

from __future__ import annotations

import math
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from records import CUBIN, ENTRY, PORTFOLIO

from autotune.core.errors import InputError
from autotune.model import TERMS
from autotune.store import TuningCache, strict_json
from autotune.store.portfolio import portfolio_document, read_portfolio
from autotune.store.sources import RecordFiles


def test_a_portfolio_survives_json() -> None:
    text = strict_json.line(portfolio_document(PORTFOLIO))
    assert read_portfolio(strict_json.parse(text)) == PORTFOLIO


FAULTS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"format": 2}, {}, "portfolio format must be 1, got 2"),
    ({"terms": ["call"]}, {}, "terms are another autotune's"),
    ({"dtype": "float7"}, {}, "dtype must be one of"),
    ({"threads": 0}, {}, "threads must be a whole number >= 1"),
    ({"loss": -1.0}, {}, "loss must be a finite number >= 0"),
    ({"loss": 1e9}, {}, "loss must be a finite number <= 1000"),
    ({"loss": 0.5}, {}, "digest must be that of the content .*the portfolio was altered"),
    ({"fingerprint": {"kind": ["cpu"], "name": "x", "fields": {}}}, {}, "fingerprint.kind must"),
    ({"fingerprint": {"kind": "cpu", "name": None, "fields": {}}}, {}, "fingerprint.name must"),
    ({"fingerprint": {"kind": "cpu", "name": "\x1b[2J", "fields": {}}}, {}, "fingerprint.name"),
    ({"fingerprint": {"kind": "cpu", "name": "x", "fields": {"a": {}}}}, {}, "fields.a must"),
    (
        {"families": {"pipelined": [1e308] * len(TERMS)}},
        {},
        r"\$.families.pipelined\[0\] must be a .* <= 1,",
    ),
    ({"entries": [{}] * 65}, {}, "64 programs at most"),
    ({}, {"layout": "xy"}, "layout must be one of"),
    ({}, {"prices": [1.0]}, "prices, got 1"),
    (
        {},
        {"prices": [-1.0] * len(TERMS)},
        r"\$.entries\[0\].prices\[0\] must be a finite number >= 0",
    ),
    ({}, {"prices": [1e308] * len(TERMS)}, r"prices\[0\] must be a finite number <= 1,"),
    ({}, {"spread": 1e308}, "spread must be a finite number <= 10"),
    ({}, {"largest": 1e308}, "largest must be a finite number <= 1e.60"),
    ({}, {"resident": 1 << 40}, "resident must be a whole number <= 65536"),
    ({}, {"resident": 0}, "resident must be a whole number >= 1"),
    ({}, {"calls": [[1, 2]]}, "a value for each of 1 parameters, got 2"),
    ({}, {"free": ["sn"]}, "free must be names of the configuration"),
    ({}, {"binary": "../../etc/passwd"}, "binary must be a SHA-256"),
]


@pytest.mark.parametrize(("change", "entry", "message"), FAULTS, ids=[f[2] for f in FAULTS])
def test_what_is_not_a_portfolio_is_refused(
    change: dict[str, Any], entry: dict[str, Any], message: str
) -> None:
    document = portfolio_document(PORTFOLIO) | change
    if entry:
        document["entries"][0] |= entry
    with pytest.raises(InputError, match=message):
        read_portfolio(document)


@pytest.mark.parametrize(
    ("target", "sectors", "ragged"), [("cuda", 3e-10, 6e-11), ("cpu", 0.0, 0.0)]
)
def test_terms_that_came_later_cost_part_of_what_is_usual(
    target: str, sectors: float, ragged: float
) -> None:
    known = TERMS.index("sectors in vain")
    document = portfolio_document(PORTFOLIO) | {"target": target, "terms": list(TERMS[:known])}
    del document["digest"]
    prices = [*document["families"].values(), *(each["prices"] for each in document["entries"])]
    for each in prices:
        del each[known:]
    read = read_portfolio(document)
    found = [*read.families.values(), *(each.prices for each in read.entries)]
    for each in found:
        # Of caches and words between rows nothing is usual.
        assert each[known:] == pytest.approx([sectors, 0.0, 0.0, 0.0, 0.0, ragged])
    assert read.entries[0].prices[:known] == PORTFOLIO.entries[0].prices[:known]


def test_what_could_not_be_read_again_is_not_written() -> None:
    with pytest.raises(InputError, match=r"loss must be a finite number"):
        portfolio_document(replace(PORTFOLIO, loss=math.nan))


def test_the_cache_keeps_one_for_a_device_and_its_binaries(tmp_path: Path) -> None:
    cache = TuningCache(tmp_path / "tuning.sqlite")
    assert cache.portfolios("gemm", "cuda") == []
    cache.put_portfolio(PORTFOLIO, [CUBIN])
    cache.put_portfolio(replace(PORTFOLIO, dtype="float64"))
    newer = replace(PORTFOLIO, loss=0.02)
    cache.put_portfolio(newer)
    found = cache.portfolios("gemm", "cuda")
    assert sorted(found, key=lambda each: each.dtype) == [
        newer,
        replace(PORTFOLIO, dtype="float64"),
    ]
    assert cache.binary(ENTRY.binary or "") == CUBIN
    assert cache.portfolios("gemm", "cpu") == []
    # Removing records leaves it, and a portfolio without it lets it go.
    cache.delete(["no such record"])
    assert cache.binary(ENTRY.binary or "") == CUBIN
    other = tuple(replace(each, binary=None) for each in PORTFOLIO.entries)
    for dtype in ("float32", "float64"):
        cache.put_portfolio(replace(PORTFOLIO, dtype=dtype, entries=other))
    assert cache.binary(ENTRY.binary or "") is None


def test_a_damaged_one_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = TuningCache(tmp_path / "tuning.sqlite")
    cache.put_portfolio(PORTFOLIO)
    cache.put_portfolio(replace(PORTFOLIO, dtype="float64"))
    with sqlite3.connect(cache.path) as connection:
        connection.execute("UPDATE portfolios SET document = 'x' WHERE subject LIKE '%float64%'")
    assert cache.portfolios("gemm", "cuda") == [PORTFOLIO]
    assert "a portfolio is left out" in caplog.text
    cache.delete(["no such record"])  # and does not stand in the way


def test_folders_hold_them_beside_records(tmp_path: Path) -> None:
    folder = tmp_path / PORTFOLIO.fingerprint.slug
    folder.mkdir()
    lines = ['{"format": "autotune-records", "version": 1}']
    lines += [strict_json.line(portfolio_document(PORTFOLIO)), "{}"]
    (folder / "gemm.portfolio.jsonl").write_text("\n".join(lines))
    files = RecordFiles(tmp_path, "cuda", trusted=True)
    assert list(files.portfolios("gemm", "cuda")) == [PORTFOLIO]
    assert list(files.portfolios("gemm", "cpu")) == []
    assert list(RecordFiles(tmp_path, "cpu").portfolios("gemm", "cuda")) == []
