"""The benchmark of shapes that nobody tuned for: what it draws, and what it makes of times."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import every_shape
import numpy as np
import pytest
from cpu_peers import Library
from hypothesis import given
from hypothesis import strategies as st
from launch_notes import launch_note
from shape_draws import CPU, GPU, KINDS, Bounds, Shape, draw
from shape_plot import scatter
from shape_rows import Header, Ratio, Row, Served, read_rows
from shape_tables import Summary, accuracy, by_kind, compared, report, slowest

from autotune.core.configuration import Candidate
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.operations.problem import Gemm
from autotune.targets.families import load_families

SERVED = Served("goto", "ty=8 tx=32", "NEAREST", "tuned for 64x64x64", "2 blocks", 0.25, 0.01)


def row(shape: Shape, ours: float, theirs: float, **more: object) -> Row:
    peers = {"fast": [theirs] * 7, "slow": [2 * theirs] * 7}
    made = Row.of(shape, "float32", SERVED, [ours] * 7, peers, 4096)
    return made if not more else type(made)(**{f: getattr(made, f) for f in made.__slots__} | more)


@pytest.mark.parametrize("bounds", [GPU, CPU])
@pytest.mark.parametrize("seed", [0, 1, 99])
def test_a_draw_is_that_of_its_seed_and_within_bounds(seed: int, bounds: Bounds) -> None:
    drawn = list(itertools.islice(draw(seed, bounds), 300))
    assert drawn == list(itertools.islice(draw(seed, bounds), 300))
    assert drawn != list(itertools.islice(draw(seed + 1, bounds), 300))
    assert all(shape in bounds for shape in drawn)
    assert all(shape.odd for shape in drawn[2::3])


def test_draws_are_log_uniform_where_work_leaves_them_so() -> None:
    free = Bounds(GPU.sides, GPU.reduction, (0, math.inf))
    drawn = list(itertools.islice(draw(5, free), 3000))
    for sizes, (low, high) in (
        ([shape.m for shape in drawn], free.sides),
        ([shape.n for shape in drawn], free.reduction),
        ([shape.k for shape in drawn], free.sides),
    ):
        middle = math.sqrt(low * high)
        assert 0.45 < np.mean([size < middle for size in sizes]) < 0.57
        assert min(sizes) < 2 * low
        assert max(sizes) > 0.9 * high


@given(st.tuples(*[st.integers(1, 5000)] * 3))
def test_every_shape_is_of_one_kind(sizes: tuple[int, int, int]) -> None:
    shape = Shape(*sizes)
    assert shape.kind in KINDS
    if shape.kind == "square-like":
        assert max(sizes) <= 3 * min(sizes)
    if shape.kind in ("skinny", "one row", "one column"):
        assert shape.few <= 16


@pytest.mark.parametrize(
    ("sizes", "kind"),
    [
        ((1, 4096, 1), "one row"),
        ((2, 4096, 1), "one column"),
        ((16, 16, 4096), "skinny"),
        ((17, 4096, 17), "long reduction"),
        ((1000, 1001, 999), "square-like"),
        ((100, 300, 1000), "other"),
    ],
)
def test_kinds(sizes: tuple[int, int, int], kind: str) -> None:
    assert Shape(*sizes).kind == kind


def test_the_fastest_peer_counts() -> None:
    found = row(Shape(64, 64, 64), ours=2.0, theirs=3.0)
    assert found.peer == "fast"
    assert found.ratio == Ratio(1.5, 1.5, 1.5)
    assert found.seconds == 2.0


def test_ratios_are_of_turns_in_one_round() -> None:
    drifting = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    assert Ratio.of([2 * each for each in drifting], drifting) == Ratio(2.0, 2.0, 2.0)


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    plain = row(Shape(3, 5, 7), 1.0, 0.5)
    tuned = plain.with_tuned(SERVED, [0.25] * 7, {"ours": [1.0] * 7, "fast": [0.5] * 7}, 25.0)
    rows = [
        row(Shape(8, 8, 8), 1.0, 2.0, joules=(1.5, 2.5), copy_share=0.9),
        replace(row(Shape(8, 8, 9), 1.0, 2.0), peer_error=0.25),
        Row(Shape(9, 9, 9), "float32", failure="no memory"),
        tuned,
    ]
    assert tuned.tuned is not None
    assert tuned.tuned.ratio.median == 2.0
    assert tuned.tuned.reached.median == 0.25
    path = tmp_path / "rows.jsonl"
    lines = [Header("machine", ["- text"]), plain, *rows]
    path.write_text("".join(f"{json.dumps(each.document())}\n" for each in lines))
    headers, read = read_rows([path])
    assert headers == [Header("machine", ["- text"])]
    assert {each.shape: each for each in read} == {each.shape: each for each in rows}


def test_errors_stand_beside_the_peers() -> None:
    errors = [(0.5, 0.25), (0.125, 0.5), (0.25, 0.0)]
    rows = [
        replace(
            row(Shape(9, 9, 1 + place), 1.0, 2.0),
            served=replace(SERVED, error=ours),
            peer_error=theirs,
        )
        for place, (ours, theirs) in enumerate(errors)
    ]
    told = [line.strip("| ").split(" | ") for line in accuracy(rows).splitlines()[2:]]
    assert {name: (middle, most) for name, middle, _, most in told} == {
        "ours": ("0.25", "0.5"),
        "the peer's": ("0.25", "0.5"),
        "ours / the peer's": ("1.12", "2"),  # where the peer is exact there is no ratio
    }
    assert "### Accuracy" in report([], rows)
    assert "### Accuracy" not in report([], [row(Shape(9, 9, 9), 1.0, 2.0)])


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=40))
def test_summaries_are_those_of_numpy(ratios: list[float]) -> None:
    found = Summary.of(ratios)
    assert found.count == len(ratios)
    assert found.least == min(ratios)
    assert found.mean == pytest.approx(np.exp(np.mean(np.log(ratios))))
    assert found.quartiles == pytest.approx(tuple(np.quantile(ratios, [0.25, 0.5, 0.75])))


def test_reports_have_every_kind_and_explain_the_slowest() -> None:
    shapes = [Shape(1, 64, 64), Shape(64, 64, 1), Shape(99, 99, 99), Shape(64, 4096, 64)]
    rows = [row(shape, 1.0, 0.5 + place) for place, shape in enumerate(shapes)]
    rows.append(row(Shape(2048, 2048, 2048), 1.0, 1.1, joules=(3.0, 4.0)))
    rows.append(Row(Shape(9, 9, 9), "float32", failure="no memory"))
    text = report([Header("machine", ["- machine: here"])], rows)
    assert "- machine: here" in text
    for kind in ("one row", "one column", "square-like", "long reduction", "odd in all sizes"):
        assert f"| {kind}" in text
    assert "| 2048x2048x2048 |" in text
    assert "| 9x9x9 | no memory |" in text
    first = slowest(rows).splitlines()[2]
    assert first.startswith("| 1x64x64 | one row |")
    assert "2 blocks; tuned for 64x64x64" in first


def test_dtypes_are_reported_apart() -> None:
    single = row(Shape(64, 64, 64), 1.0, 2.0)
    double = row(Shape(64, 64, 64), 1.0, 0.5, dtype="float64")
    text = report([], [single, double])
    first, second = text.split("## float64")
    assert "**2.00**" in first
    assert "**0.50**" not in first
    assert "**0.50**" in second
    assert "## float" not in report([], [single])


def test_runs_are_compared_over_the_shapes_of_both() -> None:
    shared, own = Shape(64, 64, 64), Shape(65, 65, 65)
    before = [row(shared, 1.0, 2.0), row(own, 1.0, 9.0)]
    after = [row(shared, 1.0, 1.0)]
    text = compared(before, after)
    assert "(1 shapes in both runs)" in text
    assert "| 64x64x64 | 2.00 | 1.00 |" in text
    assert "9.00" not in text


def test_kinds_without_a_ratio_are_left_out() -> None:
    table = by_kind([Row(Shape(1, 2, 3), "float32", failure="no")], lambda row: None)
    assert len(table.splitlines()) == 2


def test_pictures_are_drawn(tmp_path: Path) -> None:
    rows = [row(shape, 1.0, 1.3) for shape in itertools.islice(draw(0, GPU), 20)]
    path = tmp_path / "shapes.png"
    scatter(path, "machine", [("before", rows), ("after", rows)])
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("family", ["naive", "tiled", "block"])
def test_launches_are_told_as_blocks_and_waves(family: str) -> None:
    limits = find_gpu("h200").limits
    families = load_families(target="cuda", operation="gemm")
    problem = Gemm(511, 300, 1023)
    chosen = Candidate(family, families[family].default(problem, limits))
    found = re.fullmatch(
        r"(tiles (\d+)x(\d+), )?(\d+) blocks, ([\d.]+) waves of (\d+)",
        launch_note(chosen, problem, families, limits),
    )
    assert found is not None
    blocks, waves, at_once = int(found[4]), float(found[5]), int(found[6])
    assert waves == pytest.approx(blocks / at_once, abs=0.01)
    assert at_once % limits.multiprocessor_count == 0
    if found[1]:
        rows, columns = int(found[2]), int(found[3])
        assert blocks == math.ceil(511 / rows) * math.ceil(1023 / columns)


@pytest.mark.thorough
def test_three_tiny_shapes_on_this_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "shape_cpu.libraries", lambda more: [[Library("NumPy", "numpy")]]
    )  # the search for the best variant of every library is a minute
    out = tmp_path / "rows.jsonl"
    command = [
        "every_shape.py",
        "--target",
        "cpu",
        "--threads",
        "1",
        "--count",
        "0",
        "-o",
        str(out),
    ]
    command += ["--shapes", "1x40x30", "33x20x17", "64x64x64"]
    monkeypatch.setattr("sys.argv", command)
    every_shape.main()
    headers, rows = read_rows([out])
    assert len(headers) == 1
    assert [str(each.shape) for each in rows] == ["1x40x30", "33x20x17", "64x64x64"]
    for each in rows:
        assert not each.failure
        assert each.served is not None
        assert each.ratio is not None
        assert each.ratio.median > 0
        assert each.served.error <= 1
        assert each.peer == "NumPy"
    assert "### By kind" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["every_shape.py", "--report", str(out)])
    every_shape.main()
    assert "| 33x20x17 |" in capsys.readouterr().out
