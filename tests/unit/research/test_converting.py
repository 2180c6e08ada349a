"""Recordings come back from every format as they were, and dialects of other tuners are read."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune import Searcher, SearchSpace
from autotune.core.errors import InputError, MissingDependencyError, UnknownNameError
from autotune.core.measurement import Outcome
from autotune.research import Entry, Recording, convert, read_recorded, read_space
from autotune.research.converting import WRITERS, format_of
from autotune.research.formats import open_recording
from autotune.research.space import OUTSIDE, rescaled
from autotune.research.swept import FAILED
from autotune.space import Expression, Restriction
from autotune.space.document import read_spaces, write_spaces

ARROW = ("parquet", "arrow")
MEASURED_FORMS = [form for form in WRITERS if form != "t1"]
ENDS = {
    "sweep": "r.json",
    "csv": "r.csv",
    "parquet": "r.parquet",
    "arrow": "r.feather",
    "kernel-tuner": "r.kt.json",
    "t4": "r.t4.json.gz",
    "ktt": "r.ktt.json",
}

# Up to 15 digits, which come back from another unit as they were.
times = st.builds(
    lambda digits, power: float(f"{digits}e{power}"),
    st.integers(1, 10**15 - 1),
    st.integers(-20, -8),
)
texts = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=6)
scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    texts,
)
details = st.dictionaries(
    st.sampled_from(["compile_s", "trial_s", "registers", "GFLOP/s", "program", "compile_time"]),
    st.one_of(st.integers(0, 2**40), st.floats(0, 1e9)),
    max_size=3,
)
FAILURES = [each for each in Outcome if each not in (Outcome.OK, Outcome.ABANDONED)]


@st.composite
def entries(draw: st.DrawFn, family: str, names: list[str]) -> Entry:
    value = draw(st.none() | times)
    outcomes = [*map(str, FAILURES), FAILED, OUTSIDE] if value is None else ["ok", "abandoned"]
    return Entry(
        {name: draw(scalars) for name in names},
        value,
        family,
        draw(st.sampled_from(outcomes)),
        draw(texts) if value is None else "",
        draw(st.none() | st.tuples(times, times).map(lambda ends: (min(ends), max(ends)))),
        draw(st.integers(0, 1000)),
        tuple(draw(st.lists(times, max_size=4))),
        draw(st.none() | st.floats(0, 1e4)),
        draw(details),
    )


@st.composite
def recordings(draw: st.DrawFn, families: int = 2, unit: str | None = None) -> Recording:
    several = draw(st.integers(1, families))
    names = st.lists(st.sampled_from(["x", "y y", "é", "tx.n"]), min_size=1, unique=True)
    found = [
        entry
        for family in ["", "f", "g"][:several]
        for own in [draw(names)]
        for entry in draw(st.lists(entries(family, own), min_size=1, max_size=4))
    ]
    return Recording(
        found,
        name=draw(texts) or "name",
        unit=unit or draw(st.sampled_from(["s", "ms", "us", "ns"])),
        device=draw(texts),
        subject=draw(st.sampled_from([{}, {"operation": "gemm", "problem": {"m": 3}}])),
        provenance=draw(
            st.sampled_from([{}, {"version": "1"}, {"spaces": {"": {"parameters": {"x": [1]}}}}])
        ),
    )


def back(recording: Recording, form: str) -> Recording:
    """What is read of what a format's writer wrote."""
    content = WRITERS[form](recording)
    with TemporaryDirectory() as folder:
        path = Path(folder, "file.json")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with open_recording(path) as found:
            return replace(found, entries=list(found.entries))


def told(entry: Entry) -> tuple[Any, ...]:
    """All of an entry, with the types of its values, and none for a mapping of another kind."""
    values = {name: (type(value), value) for name, value in entry.configuration.items()}
    return entry._replace(configuration=values, details=dict(entry.details))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", MEASURED_FORMS)
@settings(max_examples=40)
@given(data=st.data())
def test_a_recording_comes_back_from_every_format(form: str, data: st.DataObject) -> None:
    if form in ARROW:
        pytest.importorskip("pyarrow")
    one = form == "kernel-tuner"  # a cache is of one kernel
    recording = data.draw(recordings(families=1 if one else 2))
    found = back(recording, form)
    expected = [entry.scaled(recording.unit, found.unit) for entry in recording.entries]
    assert list(map(told, found.entries)) == list(map(told, expected))
    assert [each.scaled(found.unit, recording.unit) for each in found.entries] == list(
        recording.entries
    )
    if form != "csv":
        for name in ("name", "device", "subject", "provenance"):
            assert getattr(found, name) == getattr(recording, name)


@pytest.mark.parametrize("form", ["sweep", "kernel-tuner", "t4", "ktt"])
@given(value=st.floats(1e-9, 1e3), low=st.floats(1e-9, 1e3))
def test_seconds_of_any_digits_come_back(form: str, value: float, low: float) -> None:
    entry = Entry({"x": 1}, value, outcome="ok", samples=(low, value))
    entry = entry._replace(interval=(min(low, value), max(low, value)))
    found = back(Recording([entry], "name", unit="s"), form)
    assert found.unit == "s"
    assert list(map(told, found.entries)) == [told(entry)]


@given(times, st.sampled_from(["s", "ms", "us", "ns"]), st.sampled_from(["s", "ms", "us", "ns"]))
def test_fifteen_digits_survive_a_change_of_the_unit(time: float, unit: str, to: str) -> None:
    there = rescaled(time, unit, to)
    assert rescaled(there, to, unit) == time
    powers = {"s": 0, "ms": -3, "us": -6, "ns": -9}
    assert there == pytest.approx(time * 10.0 ** (powers[unit] - powers[to]), rel=1e-15)


KT: dict[str, Any] = {
    "device_name": "Example GPU",
    "kernel_name": "kernel",
    "problem_size": [64, 64],
    "tune_params_keys": ["x", "mode"],
    "tune_params": {"x": [1, 2, 4], "mode": ["a", "1"]},
}


def cache(**entries: Any) -> dict[str, Any]:
    return {**KT, "cache": {key.replace("_", ","): entry for key, entry in entries.items()}}


MEASURED = {"x": 1, "mode": "a"}
TIMED = {"time": 3.0, "times": [2.9, 3.0, 3.1], "GFLOP/s": 5.0, "compile_time": 400.5}
DIALECTS: dict[str, Any] = {
    "errors in place of the time": cache(
        _1_a={**MEASURED, **TIMED}, _2_a={"x": 2, "mode": "a", "time": "CompilationFailedConfig"}
    ),
    "errors under the objective's name": cache(
        _1_a={**MEASURED, **TIMED}, _2_a={"x": 2, "mode": "a", "GFLOP/s": "RuntimeFailedConfig"}
    ),
    "errors beside it": cache(
        _1_a={**MEASURED, **TIMED}, _2_a={"x": 2, "mode": "a", "__error__": "InvalidConfig"}
    ),
    "null for a failure": cache(
        _1_a={**MEASURED, **TIMED}, _2_a={"x": 2, "mode": "a", "time": None}
    ),
    "values in the key alone": {
        **KT,
        "cache": {"1,a": {"time": 3.0}, "4,1": {"time": 2.5, "times": [2.5]}},
    },
    "a list of dictionaries": [
        {"x": 1, "mode": "a", "time": 3.0},
        {"x": 2, "mode": "1", "time": 2.5, "GFLOP/s": 7.0},
    ],
    "T4": {
        "metadata": {"timeunit": "microseconds", "device": "Example GPU", "autotuner": "KTT"},
        "results": [
            {
                "configuration": MEASURED,
                "times": {"runtimes": [90.5], "compilation_time": 1621.0, "framework": 48.5},
                "invalidity": "correct",
                "correctness": 1,
                "measurements": [
                    {"name": "time", "value": 90.656, "unit": ""},
                    {"name": "power", "value": 9.0, "unit": "W"},
                ],
                "objectives": ["time"],
            },
            {"configuration": {"x": 2, "mode": "a"}, "invalidity": "compile", "times": {}},
            {"configuration": {"x": 4, "mode": "a"}, "invalidity": "constraints"},
        ],
    },
    "KTT": {
        "Metadata": {"Device": "Example GPU", "TimeUnit": "Microseconds", "KttVersion": "2.2.0"},
        "Results": [
            {
                "KernelName": "kernel",
                "Status": "Ok",
                "TotalDuration": 89.536,
                "TotalOverhead": 119152.025,
                "Configuration": [
                    {"Name": "x", "Value": 1, "ValueType": "UnsignedInt"},
                    {"Name": "mode", "Value": "a", "ValueType": "String"},
                ],
                "ComputationResults": [
                    {
                        "CompilationData": {"RegistersCount": 12},
                        "ProfilingData": {"Counters": [{"Name": "warps", "Value": 24.5}]},
                    }
                ],
            },
            {
                "Status": "ValidationFailed",
                "TotalDuration": 0.0,
                "Configuration": [
                    {"Name": "x", "Value": 2, "IsDouble": False},
                    {"Name": "mode", "Value": "a"},
                ],
            },
        ],
    },
}


def read(document: object) -> Recording:
    with TemporaryDirectory() as folder:
        path = Path(folder, "file.json")
        path.write_text(json.dumps(document))
        with open_recording(path) as found:
            return replace(found, entries=list(found.entries))


@pytest.mark.parametrize("form", MEASURED_FORMS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_goes_there_and_back_without_loss(dialect: str, form: str) -> None:
    if form in ARROW:
        pytest.importorskip("pyarrow")
    original = read(DIALECTS[dialect])
    assert len(list(original.entries)) >= 2
    there = back(original, form)
    found = back(there, "sweep")  # through two formats
    expected = [entry.scaled(original.unit, "s") for entry in original.entries]
    assert list(map(told, found.entries)) == list(map(told, expected))
    if form != "csv":
        assert (found.name, found.device) == (original.name, original.device)
        assert found.provenance == original.provenance


def test_dialects_say_what_they_say() -> None:
    entry, failed = read(DIALECTS["values in the key alone"]).entries
    assert (entry.configuration, entry.value) == ({"x": 1, "mode": "a"}, 3.0)
    assert dict(failed.configuration) == {"x": 4, "mode": "1"}  # a text, as declared
    entry, failed = read(DIALECTS["null for a failure"]).entries
    assert (entry.samples, entry.seconds, failed.value) == ((2.9, 3.0, 3.1), 0.4005, None)
    entry, failed, outside = read(DIALECTS["T4"]).entries
    assert (entry.value, entry.seconds) == (90.656, pytest.approx(1.76e-3))
    assert (failed.outcome, outside.outcome) == (Outcome.COMPILE_FAILED, OUTSIDE)
    assert entry.details["power (W)"] == 9.0
    entry, failed = read(DIALECTS["KTT"]).entries
    assert (entry.value, failed.outcome) == (89.536, Outcome.WRONG_RESULT)
    assert entry.details["RegistersCount"] == 12
    assert entry.details["warps"] == 24.5


def test_files_are_converted_by_their_names(tmp_path: Path) -> None:
    source = tmp_path / "source.json"
    source.write_text(json.dumps(DIALECTS["errors in place of the time"]))
    for form, name in ENDS.items():
        assert format_of(tmp_path / name) == form
        if form in ARROW:
            pytest.importorskip("pyarrow")
        lost = convert(str(source), str(tmp_path / name))
        assert bool(lost) == (form == "csv")
        recorded = read_recorded(str(tmp_path / name))
        optimum = rescaled(recorded.optimum, recorded.unit, "ms")
        assert (recorded.size, recorded.failures, optimum) == (2, 1, 3.0)
    assert gzip.decompress((tmp_path / "r.t4.json.gz").read_bytes()).startswith(b"{")
    with pytest.raises(InputError, match=r"ends in one of .kt.json.*got 'x.dat'"):
        format_of(tmp_path / "x.dat")
    with pytest.raises(UnknownNameError, match="one of sweep, csv"):
        format_of(tmp_path / "x.dat", "xml")


def refused(change: Callable[[dict[str, Any]], None], base: str, match: str) -> None:
    document = json.loads(json.dumps(DIALECTS[base]))
    change(document)
    with pytest.raises(InputError, match=match):
        back(read(document), "sweep")


BY_OBJECTIVE: dict[str, Any] = {
    "rates of a cache": cache(
        _1_a={**MEASURED, **TIMED},
        _2_a={"x": 2, "mode": "a", "time": 2.5, "GFLOP/s": 7.0},
        _4_a={"x": 4, "mode": "a", "GFLOP/s": "RuntimeFailedConfig"},
    )
    | {"objective": "GFLOP/s"},
    "energy in T4": {
        "metadata": {"timeunit": "microseconds"},
        "results": [
            {
                "configuration": {"x": x, "mode": "a"},
                "times": {"runtimes": [90.5 - x]},
                "objectives": ["energy"],
                "measurements": [{"name": "energy", "value": 3.5 * x, "unit": "mJ"}],
            }
            for x in (1, 2)
        ],
    },
    "throughput in a sweep": {
        "objective": "throughput",
        "measurements": [
            {
                "configuration": {"x": x, "mode": "a"},
                "outcome": "ok",
                "median_s": 2e-3 / x,
                "details": {"objective": "throughput", "score": 2.5 * x},
            }
            for x in (1, 2)
        ],
    },
}


@pytest.mark.parametrize("form", MEASURED_FORMS)
@pytest.mark.parametrize(
    ("source", "best", "unit"),
    [
        ("rates of a cache", (2, 7.0), ""),
        ("energy in T4", (1, 3.5), "mJ"),
        ("throughput in a sweep", (2, 5.0), "GFLOP/s"),
    ],
)
def test_objectives_other_than_time_are_honoured(
    source: str, best: tuple[int, float], unit: str, form: str
) -> None:
    """The best is the best by it, before and after a conversion, which loses nothing."""
    if form in ARROW:
        pytest.importorskip("pyarrow")
    original = read(BY_OBJECTIVE[source])
    if form == "csv":
        with pytest.raises(InputError, match=r"a sweep's CSV is compared by times, .* by "):
            back(original, form)
        return
    there = back(original, form)
    found = back(there, "sweep")
    expected = [entry.scaled(original.unit, "s") for entry in original.entries]
    assert list(map(told, found.entries)) == list(map(told, expected))
    for recording in (original, there, found):
        space = recording.space()
        assert space.unit == unit
        x, value = best
        assert space.told(space.optimum) == value
        assert space.value({"x": x, "mode": "a"}) == space.optimum
    assert there.goal == found.goal == original.goal


@pytest.mark.parametrize("name", ["GFLOP/s", "score"])
def test_objectives_without_times_are_kept_where_there_is_a_place(name: str) -> None:
    replayed = {
        "columns": ["x"],
        "configurations": [[1], [2], [4]],
        "times": [2.5, None, 5.0],
        "objective": f"{name}, higher is better",
    }
    original = read(replayed)
    assert original.space().value({"x": 4}) == 0.2
    for form in ("t4", "kernel-tuner"):
        found = back(original, form)
        assert found.goal == original.goal
        assert list(map(told, found.entries)) == list(map(told, original.entries))
    for form in ("sweep", "ktt"):
        with pytest.raises(InputError, match=r"times, and .* none: write"):
            back(original, form)


def test_what_is_no_time_is_refused_and_not_minimised() -> None:
    refused(lambda it: it.update(objective="score"), "null for a failure", "must be one time")
    refused(lambda it: it["Metadata"].pop("TimeUnit"), "KTT", "TimeUnit must be a unit of time")
    refused(lambda it: it["Results"][0].update(Status="Well"), "KTT", "Status must be one of Ok")
    for lost in ("values in the key alone", "a list of dictionaries"):
        short = {"1": {"time": 1.0}} if isinstance(DIALECTS[lost], dict) else None
        if short:
            refused(lambda it: it.update(cache={"1": {"time": 1.0}}), lost, "the parameter 'x'")
    unknown = Recording([Entry({"x": 1}, 2.0, outcome="ok")], "name")
    for form in ("sweep", "csv", "kernel-tuner", "t4", "ktt"):
        with pytest.raises(InputError, match="times need a unit"):
            WRITERS[form](unknown)
    swept = {"objective": "beauty", "measurements": [{"configuration": {"x": 1}, "outcome": "ok"}]}
    with pytest.raises(InputError, match="objective must be one of time, throughput"):
        read(swept)
    two = [Entry({"x": 1}, 2.0, family, "ok") for family in "fg"]
    with pytest.raises(InputError, match="a Kernel Tuner cache is of one kernel"):
        WRITERS["kernel-tuner"](Recording(two, "name", unit="s"))
    named = Recording([Entry({"time": 1}, 2.0, outcome="ok")], "name", unit="s")
    with pytest.raises(InputError, match="must not be called 'time'"):
        WRITERS["kernel-tuner"](named)


def test_a_space_that_t1_has_no_place_for_is_refused(tmp_path: Path) -> None:
    point = Entry({"x": 1}, 2.0, outcome="ok")
    spaces = {"": {"parameters": {"x": [1]}, "restrictions": [{"expr": "x < 2", "reason": "r"}]}}
    recording = Recording([point], "name", unit="s", provenance={"spaces": spaces})
    assert back(recording, "t1").provenance == recording.provenance
    bare = replace(recording, provenance={})
    with pytest.raises(InputError, match="a T1 file is of one declared space"):
        WRITERS["t1"](bare)
    more = {"": {**spaces[""], "constants": {"limit": 3}}}
    with pytest.raises(InputError, match="this space has constants too"):
        WRITERS["t1"](replace(recording, provenance={"spaces": more}))
    write = tmp_path / "sweep.json"
    write.write_text(str(WRITERS["sweep"](recording)))
    assert "no measurements" in convert(write, tmp_path / "space.t1.json")


def test_the_head_of_a_sweep_comes_back(tmp_path: Path) -> None:
    head = {"study": "s", "seed": 3, "size": 9, "wanted": 2, "complete": True, "seconds": 1.5}
    document = {
        **head,
        "counts": {"ok": 1},
        "measurements": [{"configuration": {"x": 1}, "outcome": "ok", "median_s": 1.0}],
    }
    for form in MEASURED_FORMS:
        if form in ARROW:
            pytest.importorskip("pyarrow")
        there = back(read(document), form)
        if form != "csv":
            written = json.loads(str(WRITERS["sweep"](there)))
            assert written["counts"] == {"ok": 1}
            assert {key: written[key] for key in head} == head


@pytest.mark.parametrize(
    "text", ["", "ms\n1.0\n", "x,time\n1,2.0\n", "a;b;c\n", '"block_size"\tms\n1\t2\n']
)
def test_a_foreign_table_is_called_one(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    path.write_text(text)
    with pytest.raises(InputError, match="a CSV file must have the columns of a sweep, family, "):
        read_recorded(path)


def test_configurations_recorded_again_are_counted() -> None:
    twice = [Entry({"x": 1 + row % 3}, 1.0 + row, outcome="ok") for row in range(5)]
    recorded = Recording(twice, "name", unit="s", note="torn").space()
    assert recorded.note == "torn; 2 recorded again, of which the first counts"
    assert recorded.values.tolist() == [1.0, 2.0, 3.0]


def test_arrow_is_asked_for_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"need pyarrow: .*arrow"):
        WRITERS["parquet"](Recording([Entry({"x": 1}, 2.0, outcome="ok")], "name", unit="s"))


@pytest.mark.parametrize("content", [b"PAR1", b"PAR1" + b"\0" * 99, b"ARROW1\0\0" + b"x" * 50])
def test_a_damaged_table_is_refused(content: bytes, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "file.parquet").write_bytes(content)
    with pytest.raises(InputError, match="not a usable table"):
        read_recorded(tmp_path / "file.parquet")


def test_a_table_with_damaged_offsets_is_refused(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    table, file = arrow.table({"samples_s": [[1.0], [2.0], [3.0]]}), tmp_path / "file.arrow"
    with arrow.ipc.new_file(str(file), table.schema) as written:
        written.write_table(table)
    whole, damaged = (np.array([0, 1, 2, last], np.int32).tobytes() for last in (3, 10**8))
    assert file.read_bytes().count(whole) == 1
    file.write_bytes(file.read_bytes().replace(whole, damaged))
    with pytest.raises(InputError, match="not a usable table: Column 0"):
        read_recorded(file)


SPACE = SearchSpace(
    {"x": [1, 2, 4, 8], "y": [1, 2, 3], "mode": ["a", "b"]},
    [Restriction(Expression.parse("area <= limit"), "memory"), "mode == 'a' or x > 1"],
    constants={"limit": 12, "unused": 3},
    definitions={
        "area": Expression.parse("x * y / 2", exact_division=True),
        "ratio": Expression.parse("x / y"),
    },
)


def test_a_space_is_built_again_from_its_file(tmp_path: Path) -> None:
    document = json.loads(json.dumps(write_spaces(SPACE)))
    found = read_spaces(document)
    assert isinstance(found, SearchSpace)
    assert (found.digest, list(found)) == (SPACE.digest, list(SPACE))
    assert found.restrictions == SPACE.restrictions
    path = tmp_path / "sweep.json"
    measured = [Entry(point, 1.0 + row, outcome="ok") for row, point in enumerate(SPACE)]
    recording = Recording(measured, "name", unit="s", provenance={"spaces": document})
    for form in ("sweep", "kernel-tuner", "t4", "ktt"):
        content = WRITERS[form](recording)
        assert isinstance(content, str)
        path.write_text(content)
        space = read_space(path)
        assert isinstance(space, SearchSpace)
        assert space.digest == SPACE.digest
    assert dict(Searcher(space, "random", 0).ask() or {}) in list(SPACE)
    path.write_text("family,outcome,median_s,low_s\n")
    with pytest.raises(InputError, match="declares no space"):
        read_space(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parameters": {}}, "parameter"),
        ({"parameters": {"x": [[1]]}}, "spaces"),
        ({"parameters": {"x": [1]}, "restrictions": [{"expr": "__import__('os')"}]}, "import"),
        ({"parameters": {"x": [1]}, "restrictions": [{"expr": "y > 1"}]}, "unknown name 'y'"),
        (None, "spaces"),
    ],
)
def test_a_bad_space_is_refused(change: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_spaces({"": change})


def test_a_space_of_the_t1_schema_is_read(tmp_path: Path) -> None:
    document = {
        "ConfigurationSpace": {
            "TuningParameters": [
                {"Name": "x", "Type": "int", "Values": "[1, 2, 4]"},
                {"Name": "fast", "Type": "bool", "Values": "[true, false]"},
                {"Name": "mode", "Type": "string", "Values": "['a', 'b']"},
            ],
            "Conditions": [{"Parameters": ["x"], "Expression": "x <= 2 or mode == 'a'"}],
        },
        "KernelSpecification": {"Language": "CUDA", "KernelName": "k"},
    }
    path, swept = tmp_path / "k.t1.json", tmp_path / "k.json"
    path.write_text(json.dumps(document))
    assert len(read_space(path)) == 10
    for name in ("k.kt.json", "again.t1.json", "k.ktt.json", "k.json"):
        source, swept = swept if swept.exists() else path, tmp_path / name
        convert(source, swept)
        space = read_space(swept)
        assert isinstance(space, SearchSpace)
        assert (len(space), len(space.restrictions)) == (10, 1)
    again = json.loads((tmp_path / "again.t1.json").read_text())
    assert again["KernelSpecification"] == document["KernelSpecification"]
    types = [each["Type"] for each in again["ConfigurationSpace"]["TuningParameters"]]
    assert types == ["int", "bool", "string"]
    with pytest.raises(InputError, match="no configurations are recorded"):
        read_recorded(path)
    document["ConfigurationSpace"]["TuningParameters"][0]["Values"] = "__import__('os')"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"\[0\].Values must be a list of values as text"):
        read_space(path)
