"""Files of strangers: whatever is in them is read, or refused in one printable line."""

from __future__ import annotations

import copy
import json
import math
import os
import random
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from records import PORTFOLIO, record

from autotune.core.errors import AutotuneError, FamilyError, InputError, MissingDependencyError
from autotune.core.paths import data_dir
from autotune.core.printable import printable, shown
from autotune.core.toml_table import LARGEST_FILE, Table
from autotune.families.rendering import render
from autotune.families.templating import template_digest
from autotune.gpu.nvidia import known_gpus
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.research import read_recorded
from autotune.runtime.shape_list import LONGEST_LINE, read_shapes
from autotune.store import strict_json
from autotune.store.interchange import export_lines, import_records
from autotune.store.portfolio import portfolio_document, read_portfolio
from autotune.store.record import TuningRecord
from autotune.store.sources import RecordFiles
from autotune.targets.families import read_family

if TYPE_CHECKING:
    from collections.abc import Iterator

MUTATIONS = 150
STRANGE: list[Any] = [
    None, True, False, 0, -1, 2**31, 2**63, 10**400, 10**4000, math.nan, math.inf, 1e308, 5e-324,
    "", "x", "\x1b[2J", "\ud800", "\0", "\n", "a" * 10_000, "9" * 5000, "{{ 7 }}", "*/", "../x",
    "sm / 0", "9 ** 9 ** 9", "(" * 90 + "1" + ")" * 90, "'text'", "x and",
    [], [[]], {}, {"a": {}}, [1, 1], [None],
]  # fmt: skip
NAMES = ["\x1b", "a b", "\ud800", "", "n" * 10_000, "lambda", "self", "range", "x.y"]
RECORDED: list[dict[str, Any]] = [
    {"columns": ["x"], "configurations": [[1], [2]], "times": [3.0, None], "device": "Some GPU"},
    {
        "tune_params_keys": ["x"],
        "device_name": "Some GPU",
        "cache": {"1": {"x": 1, "time": 2.0}, "2": {"x": 2, "time": "InvalidConfig"}},
    },
    {
        "metadata": {"device": "Some GPU"},
        "results": [
            {
                "configuration": {"x": 1},
                "invalidity": "correct",
                "measurements": [{"name": "time", "value": 1.0, "unit": "ms"}],
                "objectives": ["time"],
                "times": {"runtimes": [1.0, 2.0]},
            }
        ],
    },
    {
        "device": "Some CPU",
        "measurements": [
            {"family": "f", "configuration": {"x": 1}, "outcome": "ok", "median_s": 1e-3}
        ],
    },
]


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(document, dict):
        for key, value in document.items():
            yield from places(value, (*path, key))
    elif isinstance(document, list):
        for number, value in enumerate(document[:4]):
            yield from places(value, (*path, number))


def mutated(document: dict[str, Any], source: random.Random) -> dict[str, Any]:
    """One to three values replaced, keys removed or renamed."""
    document = copy.deepcopy(document)
    for _ in range(source.choice([1, 1, 2, 3])):
        path = source.choice(list(places(document)) or [("empty",)])
        place: Any = document
        for key in path[:-1]:
            place = place[key]
        kind = source.randrange(6)
        if kind < 4 or not isinstance(place, dict):
            place[path[-1]] = copy.deepcopy(source.choice(STRANGE))
        elif kind == 4:
            place.pop(path[-1], None)
        else:
            place[source.choice(NAMES)] = place.pop(path[-1], None)
    return document


def as_toml(value: Any) -> str:
    """Python's values as TOML; what it cannot say becomes a date."""
    match value:
        case bool():
            return str(value).lower()
        case int():
            return hex(value) if value > 2**64 else str(value)
        case float():
            return repr(value)
        case str():
            text = json.dumps(value.encode("utf-8", "replace").decode(), ensure_ascii=False)
            return text.replace("\x7f", "\\u007f")
        case list():
            return f"[{', '.join(map(as_toml, value))}]"
        case dict():
            return f"{{ {', '.join(f'{as_toml(k)} = {as_toml(v)}' for k, v in value.items())} }}"
    return "1979-05-27"


def toml_text(document: dict[str, Any]) -> str:
    return "\n".join(f"{as_toml(key)} = {as_toml(value)}" for key, value in document.items())


def read_or_refused(read: Callable[[], Any]) -> bool:
    """Whether it was read; an error of any other kind than ours goes through."""
    try:
        read()
    except AutotuneError as error:
        refusal = str(error)
    else:
        return True
    assert refusal == printable(refusal)
    assert "\n" not in refusal
    assert len(refusal) < 1500
    refusal.encode()
    return False


def outcomes(read: Callable[[dict[str, Any]], Any], documents: list[dict[str, Any]]) -> set[bool]:
    source = random.Random(0)
    return {
        read_or_refused(lambda: read(mutated(source.choice(documents), source)))
        for _ in range(MUTATIONS)
    }


def test_recorded_files(tmp_path: Path) -> None:
    path = tmp_path / "recorded.json"

    def read(document: dict[str, Any]) -> None:
        path.write_text(json.dumps(document))
        read_recorded(path)

    assert outcomes(read, RECORDED) == {True, False}


def test_records_and_interchange_files(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    header = next(iter(export_lines([])))

    def read(document: dict[str, Any]) -> None:
        path.write_text(f"{header}\n{json.dumps(document)}\n")
        was_read = read_or_refused(lambda: import_records(path))
        TuningRecord.from_json(document)
        assert was_read

    document = record().to_json()
    del document["id"]
    assert outcomes(read, [document]) == {True, False}


def test_portfolios_and_files_of_layers(tmp_path: Path) -> None:
    document = json.loads(json.dumps(portfolio_document(PORTFOLIO)))
    del document["digest"]
    assert outcomes(read_portfolio, [document]) == {True, False}
    source = random.Random(1)
    whole = json.loads(json.dumps(record().to_json()))
    lines = [*export_lines([])]
    lines += [json.dumps(mutated(source.choice([document, whole]), source)) for _ in range(150)]
    lines += [line[: source.randrange(len(line))] for line in lines[1:50]]
    (tmp_path / "layer.jsonl").write_text("\n".join(lines))
    layer = RecordFiles(tmp_path / "layer.jsonl", "cpu")
    keys = [*layer.problems("gemm", "cpu")]
    assert keys
    for fingerprint, problem in keys:
        layer.of_problem(fingerprint, "gemm", problem, "cpu")
    for read in layer.portfolios("gemm", "cuda"):
        assert printable(read.fingerprint.name) == read.fingerprint.name


def test_descriptions_of_gpus(tmp_path: Path) -> None:
    path = tmp_path / "gpu.toml"
    document = tomllib.loads(Path(known_gpus.__file__).with_suffix(".toml").read_text())
    key, gpu = next(iter(document["gpus"].items()))
    # `find_gpu` takes the first of a file that describes one.
    document["gpus"] = {key: gpu}

    def read(document: dict[str, Any]) -> None:
        path.write_text(toml_text(document))
        find_gpu(str(path))

    assert outcomes(read, [document]) == {True, False}


def test_families(tmp_path: Path) -> None:
    path = tmp_path / "family.toml"
    spaces, templates = data_dir("search_spaces"), data_dir("templates")
    shipped = [
        tomllib.loads((spaces / "gemm" / name).read_text())
        for name in ("cpu/simd.toml", "cpu/packed.toml", "cuda/block.toml", "mpi/grid.toml")
    ]

    def read(document: dict[str, Any]) -> None:
        path.write_text(toml_text(document))
        family = read_family(path, (templates,), (spaces,))
        render(family, {each.name: each.values[-1] for each in family.parameters})

    assert outcomes(read, shipped) == {True, False}


@pytest.mark.parametrize(
    ("big", "told"),
    [
        (10**9, "too long a loop, at most 4096"),
        pytest.param(
            *(4096, "invalid Python"),
            marks=pytest.mark.skipif(sys.version_info >= (3, 13), reason="Python 3.13 takes it"),
        ),
    ],
)
def test_a_loop_of_a_template_is_bounded(big: int, told: str, tmp_path: Path) -> None:
    """A space's number may be how often a template repeats a line."""
    shipped = (data_dir("search_spaces") / "gemm" / "cpu" / "unrolled.toml").read_text()
    path = tmp_path / "big.toml"
    path.write_text(shipped.replace("values = [1, 2, 4, 8, 16], default = 4", f"values = [{big}]"))
    family = read_family(path, (data_dir("templates"),))
    with pytest.raises(FamilyError, match=told):
        render(family, {"unroll": big, "tx": 1, "threads": 1})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"x = " + b"1" * 5000, "must be usable TOML: Exceeds the limit"),
        (b"x = " + b"[" * 5000, "must not be nested deeply|must be valid TOML"),
        (b"#" * (LARGEST_FILE + 1), "must have at most 262144 bytes"),
        (b"x = '\xff'", "must be UTF-8"),
    ],
    ids=["digits", "deep", "long", "bytes"],
)
def test_tables_are_bounded(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "table.toml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        Table.read(path)


def test_what_is_shown_is_short_and_printable() -> None:
    assert shown(10**5000) == "an integer of 16610 bits"
    assert shown("a\x1b[2J\ud800\u202e") == r"'a\x1b[2J\ud800\u202e'"
    assert len(shown("x" * 10**6)) <= 60
    nested: Any = []
    for _ in range(10_000):
        nested = [nested]
    assert len(shown(nested)) <= 60
    assert printable("a\x1b[2Jb\x9b\u202e\ud800\r") == r"a\x1b[2Jb\x9b\u202e\ud800\r"
    assert printable("lines\nand\ttabs, Zürich, 行列") == "lines\nand\ttabs, Zürich, 行列"


def test_errors_show_nothing_that_drives_a_terminal() -> None:
    assert str(InputError("no \x1b]0;title\x07 here")) == r"no \x1b]0;title\x07 here"
    assert str(MissingDependencyError("no \x1b here")) == r"no \x1b here"


READERS: dict[str, Callable[[Path], Any]] = {
    "import": import_records,
    "recorded": read_recorded,
    "shapes": read_shapes,
    "gpu": lambda path: find_gpu(str(path)),
    "family": Table.read,
}


def strange(place: Path, kind: str) -> Path:
    """Something else in the place of a file."""
    place.parent.mkdir(parents=True, exist_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(place)
        case "device":
            place.symlink_to("/dev/zero")
        case "folder":
            place.mkdir()
        case "sparse":
            with place.open("wb") as file:
                file.truncate(1 << 40)
    return place


KINDS = pytest.mark.parametrize("kind", ["pipe", "device", "folder", "sparse"])


@KINDS
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_refused(reader: str, kind: str, tmp_path: Path) -> None:
    place = strange(tmp_path / "folder" / "place.toml", kind)
    with pytest.raises(InputError) as caught:
        READERS[reader](place)
    told = str(caught.value)
    assert "\n" not in told
    assert any(
        words in told
        for words in ("not a regular file", "Is a directory", "may have", "must have at most")
    )


@KINDS
def test_what_is_no_file_is_left_out_of_a_layer(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    digest = "0" * 64
    for name in ("gemm.jsonl", "gemm.portfolio.jsonl", f"{digest}.cubin", f"{digest}.cubin.xz"):
        strange(tmp_path / "cpu-x" / name, kind)
    layer = RecordFiles(tmp_path, "cpu", trusted=True)
    assert list(layer.problems("gemm", "cpu")) == []
    assert list(layer.of_problem(*record().key)) == []
    assert list(layer.portfolios("gemm", "cpu")) == []
    assert layer.binary(digest) is None
    assert len(caplog.messages) == 4


def test_lines_of_a_list_of_shapes_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "shapes").write_text(f'{{"shape": "{" " * LONGEST_LINE}8x8x8"}}\n')
    with pytest.raises(InputError, match=r"shapes:1: a line may have 4096 characters"):
        read_shapes(tmp_path / "shapes")


def test_a_template_has_a_size(tmp_path: Path) -> None:
    strange(tmp_path / "big.j2", "sparse")
    with pytest.raises(FamilyError, match=r"big\.j2: a template may have \d+ bytes"):
        template_digest("big.j2", (tmp_path,))


def test_a_repeated_key_is_found_in_one_pass() -> None:
    class Name(str):
        compared = 0
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            Name.compared += 1
            return str.__eq__(self, other)

    pairs = [(Name(number), 1) for number in [*range(2000), 0]]
    with pytest.raises(InputError, match="a key may appear once, got '0' again"):
        strict_json._unique(pairs)
    assert Name.compared < 10 * len(pairs)
