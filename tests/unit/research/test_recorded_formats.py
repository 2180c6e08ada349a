"""Recorded spaces are read from every known format, recognised by what is in the file."""

from __future__ import annotations

import gzip
import json
import math
import pickle
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import FINGERPRINT, record

from autotune import Candidate, Configuration, Gemm, Measurement, Outcome, TuningCache
from autotune.cli import main
from autotune.core.errors import InputError
from autotune.core.paths import CacheLocations
from autotune.research import Entry, RecordedSpace, read_recorded, recorded_from_cache
from autotune.research.converting import WRITERS
from autotune.research.formats import open_recording
from autotune.research.swept import entry_of, measured
from autotune.research.tables import read_csv, write_csv
from autotune.search import Subject, open_study
from autotune.space import SearchSpace

REPLAY: dict[str, Any] = {
    "name": "small",
    "device": "Example GPU",
    "objective": "time (ms), lower is better",
    "columns": ["x", "mode"],
    "configurations": [[1, "a"], [2, "a"], [2, "b"]],
    "times": [3.0, None, 1.5],
}

# The layout of Kernel Tuner's cache files, old (errors in place of the time) and new (beside it).
KERNEL_TUNER: dict[str, Any] = {
    "device_name": "Example GPU",
    "kernel_name": "kernel",
    "problem_size": [64, 64],
    "tune_params_keys": ["x", "mode"],
    "tune_params": {"x": [1, 2, 4], "mode": ["a", "b"]},
    "cache": {
        "1,a": {"x": 1, "mode": "a", "time": 3.0, "times": [2.9, 3.0, 3.1], "GFLOP/s": 5.0},
        "2,a": {"x": 2, "mode": "a", "time": "CompilationFailedConfig"},
        "2,b": {"x": 2, "mode": "b", "time": 1.5},
        "4,a": {"x": 4, "mode": "a", "time": "InvalidConfig"},
        "4,b": {"x": 4, "mode": "b", "__error__": "InvalidConfig"},
    },
}

# The results of the community's T4 schema, https://github.com/odgaard/TuningSchema.
T4: dict[str, Any] = {
    "schema_version": "1.0.0",
    "metadata": {"timeunit": "milliseconds"},
    "results": [
        {
            "configuration": {"x": 1, "mode": "a"},
            "objectives": ["time"],
            "times": {"compilation": 10.0, "runtimes": [2.9, 3.0, 3.1]},
            "invalidity": "correct",
            "correctness": 1,
            "measurements": [
                {"name": "power", "value": 9.0, "unit": "W"},
                {"name": "time", "value": 3.0, "unit": "ms"},
            ],
        },
        {
            "configuration": {"x": 2, "mode": "a"},
            "objectives": ["time"],
            "times": {"runtimes": []},
            "invalidity": "compile",
            "correctness": 0,
        },
        {
            "configuration": {"x": 2, "mode": "b"},
            "times": {"runtimes": [1.5, 1.4, 1.6]},
            "invalidity": "correct",
            "correctness": 1,
        },
        {
            "configuration": {"x": 4, "mode": "b"},
            "times": {},
            "invalidity": "constraints",
            "correctness": 0,
        },
    ],
}

KTT: dict[str, Any] = {
    "Metadata": {"Device": "Example GPU", "TimeUnit": "Milliseconds"},
    "Results": [
        {
            "Status": "Ok",
            "TotalDuration": 3.0,
            "TotalOverhead": 9.0,
            "Configuration": [{"Name": "x", "Value": 1}],
            "ComputationResults": [{"ProfilingData": {"Counters": [{"Name": "n", "Value": 1}]}}],
        }
    ],
}

CANDIDATES = [
    (
        Candidate("f", Configuration({"x": 1, "mode": "a"})),
        Measurement(Outcome.OK, 3.0, (2.9, 3.1)),
    ),
    (
        Candidate("f", Configuration({"x": 2, "mode": "a"})),
        Measurement(Outcome.TIMEOUT, reason="-"),
    ),
    (Candidate("g", Configuration({"y": True})), Measurement(Outcome.ABANDONED, 1.5)),
]


def write(path: Path, document: object) -> Path:
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def sweep_document() -> dict[str, Any]:
    return {
        "device": "Example CPU",
        "measurements": [measured(entry_of(*each)) for each in CANDIDATES],
    }


def values(recorded: RecordedSpace) -> dict[Any, float]:
    return dict(zip(map(str, recorded.space), recorded.values.tolist(), strict=True))


@pytest.mark.parametrize(
    ("document", "format", "unit"),
    [
        (REPLAY, "replay file", "ms"),
        (KERNEL_TUNER, "Kernel Tuner cache", "ms"),
        (T4, "T4 results", "ms"),
    ],
    ids=["replay", "Kernel Tuner", "T4"],
)
def test_foreign_files_say_the_same(
    tmp_path: Path, document: dict[str, Any], format: str, unit: str
) -> None:
    recorded = read_recorded(write(tmp_path / "file", document))
    assert (recorded.format, recorded.unit) == (format, unit)
    assert (recorded.size, recorded.failures, recorded.optimum) == (3, 1, 1.5)
    assert recorded.value({"x": 1, "mode": "a"}) == 3.0
    assert recorded.value({"x": 2, "mode": "a"}) is None
    assert recorded.value({"x": 2, "mode": "b"}) == 1.5
    assert {"x": 4, "mode": "b"} not in recorded.space  # a restriction said so


def test_an_unfinished_kernel_tuner_cache_is_closed(tmp_path: Path) -> None:
    whole = json.dumps(KERNEL_TUNER, indent="")
    entries = whole[: whole.rindex("}", 0, whole.rindex("}"))]  # without the last two brackets
    for end in ("", ",", ",\n"):
        recorded = read_recorded(write(tmp_path / "cache.json", entries.rstrip() + end))
        assert recorded.size == 3


def test_a_cache_torn_in_an_entry_is_read_up_to_it(tmp_path: Path, capsys) -> None:
    """Of a run that was killed, or whose disk was full; the entry may have objects of its own."""
    nested = changed(KERNEL_TUNER, "cache", "8,a", to={"x": 8, "mode": "a", "environment": {}})
    nested["cache"]["8,a"]["time"] = 2.0
    whole = json.dumps(nested, indent="")
    for cut in ('"x": 8', '"environment": {}', "{}", '"time": 2'):
        torn = whole[: whole.rindex(cut) + len(cut)]
        recorded = read_recorded(path := write(tmp_path / "cache.json", torn))
        assert recorded.size == 3
        assert recorded.note == "torn in an entry, and read up to it"
    assert (
        main(["replay", str(path), "--sampler", "random", "--seeds", "1", "--workers", "1"]) == 0
    )
    assert "1.5 ms, Example GPU; torn in an entry" in capsys.readouterr().out
    first = whole[: whole.index('"time"')]
    with pytest.raises(InputError, match=r"not valid JSON: .* \(line \d+, column \d+\)"):
        read_recorded(write(tmp_path / "cache.json", first))


def test_published_files_are_compressed(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "A100.json.gz"
    path.write_bytes(gzip.compress(json.dumps(KERNEL_TUNER).encode()))
    recorded = read_recorded(path)
    assert (recorded.name, recorded.size, recorded.note) == ("A100", 3, "")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"A100\.json\.gz: its compressed .* fetch it again$"):
        read_recorded(path)
    path.write_bytes(gzip.compress(bytes(1 << 24)))  # 16 KB
    monkeypatch.setattr("autotune.research.formats.LARGEST_FILE", 1 << 21)
    tracemalloc.start()
    with pytest.raises(InputError, match="may have 2 MiB, and this one has more"):
        read_recorded(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 23
    tracemalloc.stop()


NO_TIMES = {
    "T4, a rate that is not there": (
        lambda: changed(T4, "results", 0, "objectives", to=["GFLOP/s"]),
        r"results\[0\]\.measurements\['GFLOP/s'\]\.value must be a number, got None",
    ),
    "T4, energy in joules": (
        lambda: changed(
            T4, "results", 0, "objectives", to=[{"name": "E", "value": 2.0, "unit": "J"}]
        ),
        r"results\[0\]\.objectives must be one time, or .* got 'E'",
    ),
    "T4, several": (
        lambda: changed(T4, "results", 0, "objectives", to=["time", "energy"]),
        r"results\[0\]\.objectives must be one time, or .* got \['time', 'energy'\]",
    ),
    "T4, two times": (
        lambda: changed(
            changed(T4, "results", 2, "objectives", to=["time_b"]),
            *("results", 2, "measurements"),
            to=[{"name": "time_b", "value": 1.0}],
        ),
        "objective must be 'time' in all results, as in the first, got 'time_b'",
    ),
    "T4, unit of the file": (
        lambda: changed(T4, "metadata", "timeunit", to="watts"),
        "metadata.timeunit must be a unit of time",
    ),
    "Kernel Tuner": (
        lambda: KERNEL_TUNER | {"objective": "score"},
        r"objective must be one time, or one of GFLOP/s, .* got 'score'",
    ),
    "Kernel Tuner, several": (
        lambda: KERNEL_TUNER | {"objective": ["time", "energy"]},
        "objective must be one time",
    ),
    "replay, no direction": (
        lambda: REPLAY | {"objective": "score"},
        "objective must be one time, or one of",
    ),
}


@pytest.mark.parametrize("name", NO_TIMES)
def test_a_file_that_states_an_objective_nobody_knows_is_refused(tmp_path, name) -> None:
    """Its optimum would be its slowest configuration, and every score upside down."""
    document, message = NO_TIMES[name]
    with pytest.raises(InputError, match=message) as caught:
        read_recorded(write(tmp_path / "file.json", document()))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("stated", "unit"),
    [("seconds", "s"), ("microseconds", "us"), ("miliseconds", "ms"), ("\u00b5s", "us")],
)
def test_units_are_those_that_the_file_states(tmp_path: Path, stated: str, unit: str) -> None:
    result = {"configuration": {"x": 1}, "objectives": ["time"], "times": {"runtimes": [5.0]}}
    t4 = {"metadata": {"timeunit": stated}, "results": [result]}
    named = {**result, "measurements": [{"name": "span", "value": 5.0, "unit": stated}]}
    named["objectives"] = ["span"]
    documents = [t4, {"results": [named]}, REPLAY | {"objective": f"time ({stated})"}]
    for document in documents:
        assert read_recorded(write(tmp_path / "file", document)).unit == unit


def test_old_errors_stand_under_the_name_of_any_objective(tmp_path: Path) -> None:
    failed = {"x": 2, "mode": "a", "GFLOP/s": "CompilationFailedConfig"}
    document = changed(KERNEL_TUNER, "cache", "2,a", to=failed)
    recorded = read_recorded(write(tmp_path / "cache.json", document))
    assert (recorded.size, recorded.failures, recorded.optimum) == (3, 1, 1.5)
    stated = KERNEL_TUNER | {"objective": "time"}
    assert read_recorded(write(tmp_path / "cache.json", stated)).size == 3


def test_old_failures_are_enormous_times(tmp_path: Path) -> None:
    document = json.loads(json.dumps(KERNEL_TUNER))
    document["cache"]["2,a"]["time"] = 1e20
    recorded = read_recorded(write(tmp_path / "cache.json", document))
    assert recorded.value({"x": 2, "mode": "a"}) is None


def test_times_of_t4_results_have_one_unit(tmp_path: Path) -> None:
    """They are compared as numbers: 0.002 s would win against 1 ms."""

    def document(*times: tuple[float, str]) -> dict[str, Any]:
        return {
            "results": [
                {
                    "configuration": {"x": x},
                    "measurements": [{"name": "time", "value": value, "unit": unit}],
                }
                for x, (value, unit) in enumerate(times)
            ]
        }

    alike = read_recorded(write(tmp_path / "alike", document((1.0, "s"), (0.5, "s"))))
    assert (alike.unit, alike.optimum) == ("s", 0.5)
    for second in ("s", ""):
        path = write(tmp_path / "mixed", document((1.0, "ms"), (0.002, "s"), (1.0, second)))
        with pytest.raises(InputError, match=r"unit must be 'ms' in all results, .* got 's'"):
            read_recorded(path)


def test_old_failures_have_a_reason(tmp_path: Path) -> None:
    t4 = changed(T4, "results", 0, "measurements", 1, "value", to=1e20)
    for number, document in enumerate(
        (t4, changed(KERNEL_TUNER, "cache", "1,a", "time", to=1e20))
    ):
        with open_recording(write(tmp_path / str(number), document)) as recording:
            first, *_ = recording.entries
        assert (first.value, first.reason) == (None, "failed")


def test_objectives_may_carry_their_values(tmp_path: Path) -> None:
    result = {"configuration": {"x": 1}, "invalidity": "correct"}
    for objectives in ([{"name": "time", "value": 2.0, "unit": "s"}], {"time": 2.0}):
        document = {"results": [{**result, "objectives": objectives}]}
        assert read_recorded(write(tmp_path / "t4", document)).optimum == 2.0


def test_sweeps_come_back_from_json_csv_and_a_list_of_one(tmp_path: Path) -> None:
    document = sweep_document()
    files = [document, [document], write_csv(entry_of(*each) for each in CANDIDATES)]
    expected = {"f: x=1 mode=a": 3.0, "f: x=2 mode=a": math.nan, "g: y=True": 1.5}
    for number, each in enumerate(files):
        recorded = read_recorded(write(tmp_path / str(number), each))
        assert recorded.unit == "s"
        assert str(values(recorded)) == str(expected)
        assert recorded.value(CANDIDATES[2][0]) == 1.5


def test_csv_has_a_column_for_each_parameter() -> None:
    first, *rows = write_csv(entry_of(*each) for each in CANDIDATES).splitlines()
    assert first == (
        "family,outcome,median_s,low_s,high_s,repeats,reason,seconds,samples_s,details,x,mode,y"
    )
    assert rows == [
        "f,ok,3.0,2.9,3.1,0,,,,,1,a,",
        "f,timeout,,,,0,-,,,,2,a,",
        "g,abandoned,1.5,,,0,,,,,,,true",
    ]
    odd = {"one": "1", "empty": "", "word": '"w"', "list": "[1]", "nan": "NaN", "reason": 0.5}
    odd |= {"big": 2**60, "comma": "a,b", "true": "true", "outcome": True}
    timed = Measurement(Outcome.OK, 1e-3, (0.9e-3, 1.1e-3), repeats=7)
    content = write_csv([entry_of(Candidate("f", Configuration(odd)), timed)])
    [entry] = read_csv(content, "odd").entries
    assert dict(entry.configuration) == odd
    assert [type(each) for each in entry.configuration.values()] == [*map(type, odd.values())]
    assert (entry.value, entry.repeats, entry.interval) == (1e-3, 7, (0.9e-3, 1.1e-3))


def test_csv_of_earlier_versions_is_read(tmp_path: Path) -> None:
    old = (
        "family,configuration,outcome,median_s,low_s,high_s,reason\n"
        'f,"{""x"": 1, ""mode"": ""a""}",ok,3.0,2.9,3.1,\n'
        'f,"{""x"": 2, ""mode"": ""a""}",timeout,,,,-\n'
    )
    recorded = read_recorded(write(tmp_path / "old.csv", old))
    assert str(values(recorded)) == str({"f: x=1 mode=a": 3.0, "f: x=2 mode=a": math.nan})


def test_the_cache_holds_what_was_measured(tmp_path: Path) -> None:
    cache = TuningCache(tmp_path / "tuning.sqlite")
    problem = Gemm(8, 8, 8)
    cache.add_measurements("one", FINGERPRINT, problem, "cpu", CANDIDATES[:2])
    again = [(CANDIDATES[0][0], Measurement(Outcome.OK, 2.0))]
    cache.add_measurements("two", FINGERPRINT, problem, "cpu", again)
    assert recorded_from_cache(cache.path, study="one").optimum == 3.0
    newest = recorded_from_cache(cache.path, problem=problem)
    assert (newest.size, newest.optimum) == (2, 2.0)
    with pytest.raises(InputError, match="no measurements of study 'three'"):
        recorded_from_cache(cache.path, study="three")
    cache.add_measurements("two", FINGERPRINT, Gemm(9, 9, 9), "cpu", again)
    with pytest.raises(InputError, match="2 problems"):
        recorded_from_cache(cache.path)


def test_the_device_of_what_was_measured_is_named(tmp_path: Path) -> None:
    """By the study's journal, or a record; its digest stands for it where there is neither."""
    place = CacheLocations.at(tmp_path).create()
    cache = TuningCache(place.database)
    cache.add_measurements("one", FINGERPRINT, Gemm(8, 8, 8), "cpu", CANDIDATES)
    assert recorded_from_cache(cache.path, study="one").device == FINGERPRINT.digest
    subject = Subject("gemm", {}, "cpu", "its name", FINGERPRINT.digest)
    space = SearchSpace({"x": [1]})
    with open_study(space, None, "one", place.studies, subject=subject) as study:
        study.ask()
    assert recorded_from_cache(cache.path, study="one").device == "its name"
    cache.add(record())
    assert recorded_from_cache(cache.path, study="one").device == FINGERPRINT.name


def test_a_recorded_space_travels_to_other_processes(tmp_path: Path) -> None:
    for document in (REPLAY, sweep_document()):
        recorded = read_recorded(write(tmp_path / "file", document))
        twin = pickle.loads(pickle.dumps(recorded))
        assert twin.space.digest == recorded.space.digest
        np.testing.assert_array_equal(twin.values, recorded.values)


def test_of_repeated_configurations_the_first_counts() -> None:
    entries = [Entry({"x": 1}, 2.0), Entry({"x": 1}, 1.0), Entry({"x": 2}, None)]
    assert values(RecordedSpace.of(entries, name="r"))["x=1"] == 2.0


def test_a_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits hold before anything is parsed, and each is named with what to do."""
    path = write(tmp_path / "file.json", REPLAY)
    monkeypatch.setattr("autotune.research.space.MOST_CONFIGURATIONS", 2)
    with pytest.raises(InputError, match=r"file\.json: more than 2 configurations are recorded"):
        read_recorded(path)
    monkeypatch.setattr("autotune.research.formats.MOST_VALUES", 10)
    with pytest.raises(
        InputError, match=r"may have 10 values, and this one has about 21: split it"
    ):
        read_recorded(path)
    monkeypatch.setattr("autotune.research.formats.LARGEST_FILE", 1 << 7)
    with pytest.raises(InputError, match="may have 0 MiB, and this one has more: split it"):
        read_recorded(path)
    monkeypatch.setattr("autotune.research.formats.LARGEST_FILE", 1 << 20)
    with pytest.raises(InputError, match="not a regular file"):
        read_recorded(Path("/dev/zero"))


def test_reading_takes_memory_in_proportion_to_the_file(tmp_path: Path) -> None:
    """Configurations are numbers in columns; an object for each took fifty times the file."""
    rows = 20_000
    document = {
        "columns": ["x"],
        "configurations": [[n] for n in range(rows)],
        "times": [1.0 + n for n in range(rows)],
    }
    path = write(tmp_path / "many.json", document)
    tracemalloc.start()
    recorded = read_recorded(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert recorded.size == rows
    assert recorded.value({"x": rows - 1}) == float(rows)
    assert peak < 25 * path.stat().st_size


def changed(document: dict[str, Any], *path: Any, to: Any) -> dict[str, Any]:
    copy = json.loads(json.dumps(document))
    place = copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return copy


LONG_FIELD = '"' + '{""x"": ' + " " * 140_000 + '1}"'
BAD = {
    "no keys": (
        {"tune_params_keys": None, "cache": {}},
        "tune_params must be an object, got None",
    ),
    "escape in a name": (changed(REPLAY, "name", to="\x1b[2J"), r"name must be one line of pr"),
    "escape in a device": (changed(KERNEL_TUNER, "device_name", to="a\x9bb"), "device must be"),
    "surrogate": (
        changed(REPLAY, "columns", 0, to="\ud800"),
        r"columns\[0\] must be one line",
    ),
    "reversed text": (
        changed(REPLAY, "configurations", 0, 1, to="\u202e"),
        r"configurations\[0\] must be",
    ),
    "long key": (
        changed(KERNEL_TUNER, "cache", "x" * 10**6, to=1),
        r"\['x+\.\.\. must be an object",
    ),
    "long integer": (
        json.dumps(REPLAY).replace("[2, ", "[" + "1" * 4000 + ", ", 1),
        r"configurations\[1\] must be a whole number < 2\^63, got an integer of 13285 bits",
    ),
    "long time": (
        json.dumps(REPLAY).replace("3.0", "1" * 400),
        r"times\[0\] must be a positive",
    ),
    "long field": (
        f"family,configuration,outcome,median_s\nf,{LONG_FIELD},ok,1\n",
        r"line 2: not usable CSV: field larger than field limit",
    ),
    "null byte": (
        "family,configuration,outcome,median_s\n\0,{},ok,1\n",
        r"line 2|family: expected",
    ),
    "unit": (
        {
            "results": [
                {
                    "configuration": {"x": 1},
                    "measurements": [{"name": "time", "value": 1.0, "unit": "\x07"}],
                }
            ]
        },
        r"results\[0\].measurements\['time'\].unit must be one of time, like ms, got",
    ),
    "many parameters": (
        {"columns": [f"p{n}" for n in range(1001)], "configurations": [[1] * 1001], "times": [1]},
        "1001 parameters are too many, at most 1000",
    ),
    "nothing": ("", "not valid JSON"),
    "text": ("hello", r"not valid JSON.*line 1, column 1"),
    "deep": ("[" * 200_000, "nested too deep"),
    "number": (42, "expected a JSON object with `cache`"),
    "another object": ({"a": 1}, r"got one with \['a'\]"),
    "several sweeps": ([{}, {}], "an array of 2"),
    "long number": ("[" + "9" * 5000 + "]", "not usable JSON"),
    "no columns": ({"configurations": []}, "`columns`"),
    "empty": (changed(changed(REPLAY, "configurations", to=[]), "times", to=[]), "no config"),
    "times": (changed(REPLAY, "times", to=[1.0]), "times: expected one for each of 3"),
    "row": (changed(REPLAY, "configurations", 1, to=[1]), r"configurations\[1\] must be 2"),
    "cell": (changed(REPLAY, "configurations", 1, 0, to=[1]), r"configurations\[1\] must be a"),
    "zero": (changed(REPLAY, "times", 0, to=0), r"times\[0\] must be a positive"),
    "truth": (changed(REPLAY, "times", 0, to=True), r"times\[0\] must be a positive"),
    "all failed": (changed(REPLAY, "times", to=[None] * 3), "every recorded configuration failed"),
    "columns": (changed(REPLAY, "columns", to=["x", "x"]), "columns must be distinct"),
    "cache": (changed(KERNEL_TUNER, "cache", to=[]), "cache must be an object"),
    "keys": (changed(KERNEL_TUNER, "tune_params_keys", to=["z"]), r"\['1,a'\].*parameter 'z'"),
    "time": (changed(KERNEL_TUNER, "cache", "1,a", "time", to="soon"), r"\['1,a'\]\.time.*'soon'"),
    "error": (
        changed(KERNEL_TUNER, "cache", "4,b", "__error__", to="Oops"),
        r"\['4,b'\].__error__ must be one of",
    ),
    "invalidity": (
        changed(T4, "results", 1, "invalidity", to="perhaps"),
        r"results\[1\]\.invalidity must be one of",
    ),
    "no configuration": (
        changed(T4, "results", 1, to={"invalidity": "correct"}),
        r"results\[1\]\.configuration must be an object",
    ),
    "no time": (changed(T4, "results", 0, "measurements", to=[]) | {"x": 1}, None),
    "nothing measured": (
        changed(T4, "results", 2, "times", to={}),
        r"results\[2\]\.measurements must be one named 'time'",
    ),
    "other parameters": (
        changed(T4, "results", 1, "configuration", to={"z": 1}),
        "has parameters",
    ),
    "measurements": ({"measurements": 1}, "measurements must be an array"),
    "outcome": (
        {"measurements": [{"configuration": {"x": 1}, "outcome": "fine"}]},
        r"measurements\[0\]\.outcome must be one of",
    ),
    "median": (
        {"measurements": [{"configuration": {"x": 1}, "outcome": "ok"}]},
        r"measurements\[0\]\.median_s must be positive seconds, got None",
    ),
    "csv": (
        "family,configuration,outcome,median_s\nf,{,ok,1\n",
        "line 2: expected a configuration as JSON",
    ),
    "new csv": (
        "family,outcome,median_s,low_s,high_s,repeats,reason,x\nf,ok,slow,,,1,,2\n",
        "line 2: expected times in seconds and a whole number of repeats",
    ),
    "csv without a time": (
        "family,outcome,median_s,low_s,high_s,repeats,reason,x\nf,ok\n",
        "line 2.median_s must be positive seconds",
    ),
    "short csv": ("family,configuration,outcome,median_s\nf\n", "line 2: expected"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_named_with_key_and_expectation(tmp_path: Path, name: str) -> None:
    document, message = BAD[name]
    path = write(tmp_path / "bad.json", document)
    if message is None:  # its runs tell the time all the same
        assert read_recorded(path).optimum == 1.5
        return
    with pytest.raises(InputError, match=message) as caught:
        read_recorded(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*missing: No such file"):
        read_recorded(tmp_path / "missing")
    with pytest.raises(InputError, match="Is a directory"):
        read_recorded(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a text file"):
        read_recorded(tmp_path / "binary")


KEYS = st.sampled_from(
    sorted(
        {"x", "columns", "configurations", "family", "median_s", "measurements", "outcome"}
        | {"cache", "tune_params", "tune_params_keys", "time", "__error__"}
        | {"results", "configuration", "objectives", "times", "runtimes", "invalidity"}
        | {"name", "value", "unit", "objective", "metadata", "timeunit"}
    )
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from(["x", "ok", "correct", "time", "InvalidConfig", "compile"]),
)
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=5)),
    max_leaves=25,
)


@contextmanager
def one_line() -> Iterator[None]:
    """What is refused inside is refused in one line."""
    with suppress(InputError):
        try:
            yield
        except InputError as error:
            if "\n" in str(error):
                raise AssertionError(f"more than one line: {error}") from error
            raise


@given(st.dictionaries(KEYS, DOCUMENTS, max_size=5))
def test_whatever_a_file_holds_it_is_a_space_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, document: dict[str, Any]
) -> None:
    path = write(tmp_path_factory.getbasetemp() / "fuzzed.json", document)
    with one_line():
        recorded = read_recorded(path)
        assert recorded.size > recorded.failures


def values_of(document: dict[str, Any]) -> list[list[str | int]]:
    """Every place in a document, as the keys that lead there."""
    places: list[list[str | int]] = []

    def walk(value: Any, path: list[str | int]) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            places.append([*path, key])
            if isinstance(inner, dict | list):
                walk(inner, [*path, key])

    walk(document, [])
    return places


@given(st.data())
def test_one_wrong_value_anywhere_is_refused_or_does_not_matter(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    known = {"provenance": {"spaces": {"": {"parameters": {"x": [1, 2]}}}, "t4": {"a": 1}}}
    known |= {"subject": {"operation": "gemm"}, "native": ["t4"]}
    ours = {"details": {"compile_s": 1.0}, "samples": [1.0], "family": "f", "outcome": "ok"}
    cache = {"1,a": {**KERNEL_TUNER["cache"]["1,a"], "autotune": ours}}
    extended = {**KERNEL_TUNER, "cache": cache, "autotune": known}
    documents = [REPLAY, KERNEL_TUNER, T4, KTT, extended, sweep_document()]
    document = data.draw(st.sampled_from(documents))
    place = data.draw(st.sampled_from(values_of(document)))
    broken = changed(document, *place, to=data.draw(DOCUMENTS))
    path = write(tmp_path_factory.getbasetemp() / "broken.json", broken)
    with one_line():
        assert read_recorded(path).size > 0
    for form in set(WRITERS) - {"parquet", "arrow"}:
        with one_line(), open_recording(path) as recording:
            WRITERS[form](recording)
