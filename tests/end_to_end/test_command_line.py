"""Every command: its JSON contract, its text, and one clear line for bad input."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.measuring import rounds


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run a command, on the CPU also where there is a GPU."""
    where = [] if arguments[0] == "cache" else ["--target", "cpu"]
    code = main([*arguments, *where])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def document(capsys: pytest.CaptureFixture[str], *arguments: str):
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.mark.slow
def test_tune_then_list_then_bench(
    capsys, warm_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "DISAGREE", math.inf)  # a baseline, whatever disturbs NumPy here
    cache = ["--cache", str(warm_cache)]
    shape = ["--shape", "48x33x57", "--dtype", "float64", "--threads", "1"]
    few = ["--family", "loops", "--trials", "1", "--workers", "1"]
    [tuned] = document(capsys, "tune", *shape, *few, *cache)
    assert tuned["problem"]["m"] == 48
    assert tuned["target"] == "cpu"
    assert set(tuned["best"]) == {
        "family",
        "configuration",
        "median_s",
        "interval_s",
        "gflops",
        "ties",
    }
    assert set(tuned["baseline"]) == {"name", "median_s", "ratio"}
    assert sum(tuned["counts"].values()) == 1

    records = document(capsys, "cache", "list", *cache)
    assert [record["id"] for record in records] == [tuned["id"]]
    code, out, _ = run(capsys, "cache", "show", tuned["id"], *cache)
    assert code == 0
    assert tuned["best"]["family"] in out
    assert document(capsys, "cache", "verify", *cache)

    # Rungs with presets, and one without; each of the other families would be one more like it.
    families = ["--family", "goto", "--family", "loops"]
    rows = document(capsys, "bench", *shape, "--ladder", *families, *cache)
    assert {"problem", "kernel", "median_s", "gflops", "ratio_to_vendor", "error"} <= set(rows[0])
    assert rows[0]["kernel"].startswith("NumPy")
    assert rows[1]["kernel"].startswith("tuned")
    assert all(row["median_s"] is None or row["median_s"] > 0 for row in rows)
    # A rung that is not valid for so small a product has neither.
    assert all((row["error"] is None) == (row["median_s"] is None) for row in rows[1:])
    assert all(row["error"] <= 1 for row in rows[1:] if row["error"] is not None)


def test_summary_says_what_matters(capsys, warm_cache: Path) -> None:
    arguments = ["--shape", "40x40x40", "--trials", "1", "--family", "loops", "--workers", "1"]
    code, out, err = run(capsys, "tune", *arguments, "--cache", str(warm_cache))
    assert code == 0, err
    told = (
        "C[40x40] = A[40x40] @ B[40x40]",
        "GFLOP/s",
        "NumPy",
        "Gemm(m=40, n=40, k=40)",
        "valid",
    )
    assert all(text in out for text in told)
    assert all(len(line) <= 100 or str(warm_cache) in line for line in out.splitlines())
    assert "tuning C[40x40]" in err


@pytest.mark.thorough
def test_a_family_of_a_looser_class_may_be_asked_for(capsys, warm_cache: Path) -> None:
    arguments = ["--family", "strassen", "--shape", "96x96x96", "--trials", "1", "--workers", "1"]
    [tuned] = document(capsys, "tune", *arguments, "--cache", str(warm_cache))
    assert tuned["problem"]["accuracy"] == "strassen"
    assert tuned["best"]["family"] == "strassen"


def test_space_shows_the_funnel(capsys) -> None:
    families = document(capsys, "space", "--shape", "512x512x512")
    assert {entry["family"] for entry in families} >= {"loops", "packed", "strassen"}
    for entry in families:
        remaining = [entry["cartesian"], *(r["remaining"] for r in entry["restrictions"])]
        assert remaining == sorted(remaining, reverse=True)
        assert remaining[-1] == entry["valid"] > 0
        assert all(r["reason"] for r in entry["restrictions"])
    code, out, _ = run(capsys, "space", "packed")
    assert code == 0
    assert "what must hold" in out


def test_emit_prints_source(capsys) -> None:
    emitted = document(capsys, "emit", "loops", "--set", "order=kij")
    assert emitted["configuration"]["order"] == "kij"
    compile(emitted["source"], "loops", "exec")
    code, out, _ = run(capsys, "emit", "loops", "--set", "order=kij")
    assert code == 0
    assert out.rstrip("\n") == emitted["source"].rstrip("\n")


def test_device_and_families(capsys) -> None:
    device = document(capsys, "device")
    assert set(device) == {"fingerprint", "limits", "toolchain", "state", "gpus"}
    assert device["limits"]["max_threads"] >= 1
    names = [family["family"] for family in document(capsys, "families")]
    assert names == sorted(names)
    assert "packed" in names


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["tune", "--shape", "0x1x1"], "0x1x1"),
        (["tune", "--shape", "-4x1x1"], "-4x1x1"),
        (["tune", "--shape=12x12"], "12x12"),
        (["tune", "--dtype", "int8"], "int8"),
        (["tune", "--family", "pakced"], "packed"),
        (["tune", "--sampler", "nope"], "nope"),
        (["tune", "--target", "tpu"], "tpu"),
        (["tune", "--trials", "0"], "trials"),
        (["tune", "--trials", "many"], "many"),
        (["tune", "--layout", "zz"], "zz"),
        (["tune", "--threads", "0"], "threads"),
        (["tune", "--storage", "nonsense://x", "--trials", "1"], "nonsense"),
        (["tune", "--families", "/nowhere/at/all"], "/nowhere/at/all"),
        (["tune", "--study", "x", "--shape", "1x1x1", "--shape", "2x2x2"], "--study"),
        (["emit", "loops", "--set", "order=zzz"], "zzz"),
        (["emit", "loops", "--set", "ordre=ijk"], "order"),
        (["emit", "loops", "--set", "order"], "NAME=VALUE"),
        (["emit", "nothing"], "nothing"),
        (["space", "nothing"], "nothing"),
        (["cache", "show", "feed"], "feed"),
        (["cache", "import", "/nowhere/records.jsonl"], "/nowhere/records.jsonl"),
        (["frobnicate"], "frobnicate"),
        (["--cache", "/nowhere"], "COMMAND"),
    ],
)
def test_bad_input_gets_one_line(capsys, arguments: list[str], named: str) -> None:
    try:
        code = main(arguments)
    except SystemExit as stop:  # argparse leaves this way
        code = stop.code
    captured = capsys.readouterr()
    assert code == 2, captured.err
    assert captured.out == ""
    errors = [line for line in captured.err.splitlines() if "error:" in line]
    assert len(errors) == 1, captured.err
    assert named in errors[0]


def test_an_unwritable_cache_is_refused_before_work(capsys, tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    code, out, err = run(capsys, "tune", "--shape", "8x8x8", "--cache", str(blocker / "sub"))
    assert code == 1
    assert out == ""
    assert str(blocker) in err
    assert err.count("\n") == 1
    assert blocker.read_text() == "not a folder"


def test_a_corrupt_cache_is_refused_and_left_alone(capsys, tmp_path: Path) -> None:
    database = tmp_path / "tuning.sqlite"
    database.write_bytes(b"this is no database" * 100)
    code, _, err = run(capsys, "tune", "--shape", "8x8x8", "--cache", str(tmp_path))
    assert code == 1
    assert str(database) in err
    assert database.read_bytes() == b"this is no database" * 100


def test_a_malformed_family_names_file_and_key(capsys, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text('family = "bad"\noperation = "gemm"\n')
    code, _, err = run(capsys, "families", "--families", str(tmp_path))
    assert code == 2
    assert "bad.toml" in err
    assert "target" in err
