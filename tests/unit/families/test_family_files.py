"""Files of families: what is read, and faults, which name file, key and expectation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autotune.core.configuration import Configuration, Value
from autotune.core.errors import FamilyError, SpaceError
from autotune.core.limits import CpuLimits
from autotune.families.family import KernelFamily
from autotune.families.gpu.occupancy import blocks_per_multiprocessor
from autotune.families.gpu.planning import Planner
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.operations.problem import Gemm
from autotune.targets.families import read_family

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.families.family import KernelFamily


LIMITS = CpuLimits(
    max_threads=2,
    vector_bits=256,
    vector_registers=16,
    l1_bytes=32768,
    l2_bytes=1048576,
    l3_bytes=0,
    line_bytes=64,
)

TEXT = """\
family = "tiled"
operation = "gemm"
target = "cpu"
template = "tiled.py.j2"
accuracy = "ieee"
summary = "Cache tiles"

[parameters]
sm = { values = [16, 32, 64], default = 32, summary = "rows of a tile", runtime = true }
ty = { values = [2, 3, 4], default = 4 }
order = { values = ["ij", "ji"], default = "ij" }
threads = { values = [1, 2, 4] }

[derived]
strips = "sm / ty"
panel_bytes = "strips * N * itemsize"

[[restrictions]]
expr = "threads <= max_threads"
reason = "hardware threads the process may use"

[[restrictions]]
expr = "panel_bytes <= l2_bytes"
reason = "a panel stays in the level-2 cache"
"""


def read(folder: Path, text: str | bytes = TEXT) -> KernelFamily:
    path = folder / "tiled.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    (folder / "tiled.py.j2").write_text("# {{ ty }}\n")
    return read_family(path, (folder,))


def test_every_key_is_read(tmp_path: Path) -> None:
    family = read(tmp_path)
    assert (family.name, family.operation, family.target) == ("tiled", "gemm", "cpu")
    assert (family.accuracy, family.summary) == ("ieee", "Cache tiles")
    assert (family.dtypes, family.layouts) == (("float32", "float64"), ("nn",))
    assert [p.name for p in family.parameters] == ["sm", "ty", "order", "threads"]
    sm, _, order, threads = family.parameters
    assert (sm.values, sm.default, sm.summary) == ((16, 32, 64), 32, "rows of a tile")
    assert (sm.runtime, order.runtime) == (True, False)
    assert (order.values, threads.default, threads.summary) == (("ij", "ji"), None, "")
    assert family.runtime_parameters == ("sm",)
    assert list(family.derived) == ["strips", "panel_bytes"]
    assert [r.text for r in family.restrictions] == [
        "threads <= max_threads",
        "panel_bytes <= l2_bytes",
    ]
    assert family.restrictions[1].reason == "a panel stays in the level-2 cache"
    assert family.launch is None
    assert family.presets == {}


def test_dtypes_and_layouts_may_be_narrowed(tmp_path: Path) -> None:
    text = TEXT.replace(
        "[parameters]", 'dtypes = ["float64"]\nlayouts = ["nn", "tn"]\n[parameters]'
    )
    family = read(tmp_path, text)
    assert (family.dtypes, family.layouts) == (("float64",), ("nn", "tn"))


# What is replaced in TEXT, by what, and what the message must say.
FAULTS = {
    "unknown key": ('summary = "C', 'sumary = "C', r"summary is missing \(is 'sumary' meant"),
    "extra key": ("[parameters]", "lauout = []\n[parameters]", r"lauout is not a key; .*layouts"),
    "key of a parameter": ("default = 32", "defualt = 32", r"parameters\.sm\.defualt .*'default'"),
    "key of a restriction": ("reason = ", "why = ", r"restrictions\[1\]\.reason is missing"),
    "missing": ('accuracy = "ieee"\n', "", "accuracy is missing"),
    "missing values": ("{ values = [1, 2, 4] }", "{}", r"parameters\.threads\.values is missing"),
    "no text": ('"Cache tiles"', "7", "summary must be one line of text, got 7"),
    "two lines": ('"Cache tiles"', r'"a\nb"', "summary must be one line"),
    "family": ('"tiled"\n', '"til/ed"\n', "family must be letters, digits and underscores"),
    "target": ('"cpu"', '"gpu"', "target must be one of cuda.*got 'gpu'"),
    "accuracy": ('"ieee"', '"iee"', r"accuracy must be one of .*did you mean 'ieee'\?"),
    "dtype": ("[parameters]", 'dtypes = ["float23"]\n[parameters]', r"dtypes .*'float32'\?"),
    "no dtype": ("[parameters]", "dtypes = []\n[parameters]", "dtypes must be a list with at"),
    "layouts": ("[parameters]", 'layouts = ["nn", "nn"]\n[parameters]', "layouts must not repeat"),
    "template": ("tiled.py.j2", "tilde.py.j2", "template must be a file in .*'tilde.py.j2'"),
    "template outside": ("tiled.py.j2", "../x.py.j2", "template must be a file in"),
    "no list": ("[2, 3, 4]", "4", r"parameters\.ty\.values must be a list"),
    "no such list": ("[2, 3, 4]", '"few"', r"ty\.values must be a list, or the name of .* 'few'"),
    "empty": ("[2, 3, 4]", "[]", r"parameters\.ty\.values must be a list with at least one"),
    "no table": ("{ values = [1, 2, 4] }", "[1, 2, 4]", r"parameters\.threads must be a table"),
    "mixed": ("[2, 3, 4]", "[2, 3.0, 4]", r"ty\.values must be all integers, .* got 3\.0"),
    "mixed bool": ("[2, 3, 4]", "[2, true, 4]", "ty.values must be all integers.*got True"),
    "date": ("[2, 3, 4]", "[2020-01-01]", r"ty\.values must be all integers"),
    "nested": ("[2, 3, 4]", "[[2], [3], [4]]", r"ty\.values must be all integers"),
    "nan": ("{ values = [1, 2, 4] }", "{ values = [nan] }", r"threads\.values must be finite"),
    "huge": ("{ values = [1, 2, 4] }", f"{{ values = [{2**63}] }}", "must fit 64 bits"),
    "quote": ('["ij", "ji"]', "['ij', 'j\"i']", r"order\.values must be words: letters"),
    "repeated": ("[2, 3, 4]", "[2, 3, 2, 4]", r"ty\.values must not repeat"),
    "default": ("default = 32", "default = 48", "sm.default must be one of its values 16, 32, 64"),
    "default type": ("default = 4 }", "default = 4.0 }", r"ty\.default must be one of"),
    "runtime text": ('default = "ij"', 'runtime = true, default = "ij"', "order.runtime .*int"),
    "runtime type": ("runtime = true", "runtime = 1", "sm.runtime must be true or false"),
    "size": ("ty =", "N =", r"parameters\.N is the name of a size"),
    "limit": ("ty =", "l2_bytes =", r"parameters\.l2_bytes is the name of a size, a limit"),
    "keyword": ("ty =", "lambda =", r"parameters\.lambda must be a Python name"),
    "no name": ("ty =", '"t-y" =', "parameters.t-y must be a Python name"),
    "jinja name": ("ty =", "loop =", r"parameters\.loop is the name of"),
    "template name": ("ty =", "banner =", r"parameters\.banner is the name of"),
    "argument": ("ty =", "lda =", r"parameters\.lda is the name of"),
    "function": ("ty =", "ceildiv =", r"parameters\.ceildiv is the name of"),
    "twice": ("strips =", "ty =", r"derived\.ty is defined twice"),
    "toml twice": ("[derived]", "[parameters]\n[derived]", r"must be valid TOML: .*line"),
    "toml": ('family = "tiled"', "family = tiled", r"must be valid TOML: .*line 1"),
    "no expression": ('"sm / ty"', "7", r"derived\.strips must be an expression in quotes"),
    "syntax": ('"sm / ty"', '"sm /"', r"derived\.strips is not an expression: .*sm /"),
    "call": ('"sm / ty"', '"open(sm)"', r"derived\.strips is not an expression"),
    "unknown name": (
        '"panel_bytes <= l2_bytes"',
        '"pannel_bytes <= l2_bytes"',
        r"restrictions\[2\]\.expr = .* uses 'pannel_bytes'.*did you mean 'panel_bytes'\?",
    ),
    "later name": ('"sm / ty"', '"panel_bytes / ty"', "derived.strips .* uses 'panel_bytes'"),
    "gpu limit": ("max_threads\"", "max_threads_per_block\"", "uses 'max_threads_per_block'"),
    "capitals": ('"ieee"', '"IEEE"', r"accuracy must be one of .*'IEEE'; did you mean 'ieee'\?"),
    "key in capitals": ("runtime = ", "Runtime = ", r"sm\.Runtime is not a key; .*'runtime'\?"),
    "extra table": ("[derived]", "[extra]\n[derived]", "extra is not a key"),
}  # fmt: skip


PRODUCT = TEXT.replace('"gemm"', '"mine"\nformula = "tril(A) @ B"\nflops = "M * N * K"')


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"M * N * K"', '"M * Q"', r"flops = 'M \* Q' uses 'Q'; the names there are: .*itemsize"),
        ('"M * N * K"', '"M *"', r"flops is not an expression"),
        ('"M * N * K"', '""', r"flops must be one line of text"),
        ("tril(A)", "flops(A)", r"formula must say what C becomes: .*flops"),
        ("tril(A) @", "flops @", r"formula must say what C becomes: .*'flops'"),
        ("tril(A) @", "B @", r"formula must say what C becomes: "),
    ],
)
def test_a_product_s_fault_is_that_of_the_key_that_has_it(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in PRODUCT
    assert read(tmp_path, PRODUCT).defined.result.text == "tril(A) @ B"
    with pytest.raises(FamilyError, match=rf"tiled\.toml: {message}"):
        read(tmp_path, PRODUCT.replace(old, new))


def test_threads_may_follow_from_the_element_types(tmp_path: Path) -> None:
    threads = 'threads = "wide"\n[parameters]'
    wide = '[derived]\nwide = "ty * acc_itemsize // itemsize"'
    text = TEXT.replace("[parameters]", threads).replace("[derived]", wide)
    family = read(
        tmp_path,
        text.replace("threads = { values = [1, 2, 4] }", "").replace(
            "threads <= max_threads", "wide <= max_threads"
        ),
    )
    values: dict[str, Value] = {"order": "ij", "ty": 4, "sm": 16}
    assert family.thread_count(values, "float32") == 4
    assert family.thread_count(values, "float16") == 8


def test_restrictions_are_an_array_of_tables(tmp_path: Path) -> None:
    start = TEXT.index("[[restrictions]]")
    for wrong in ("restrictions = 1\n", 'restrictions = ["ty > 1"]\n'):
        with pytest.raises(FamilyError, match=r"restrictions must be an array of tables"):
            read(tmp_path, wrong + TEXT[:start])


def test_no_parameters(tmp_path: Path) -> None:
    start, end = TEXT.index("[parameters]"), TEXT.index("[derived]")
    with pytest.raises(FamilyError, match="at least one parameter"):
        read(tmp_path, TEXT[:start] + "[parameters]\n")
    with pytest.raises(FamilyError, match="parameters is missing"):
        read(tmp_path, TEXT[:start] + TEXT[end:].replace("[derived]", "[derive]"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"family = '\xff'", "UTF-8"),
        (b"x = " + b"[" * 5000 + b"]" * 5000, "nested"),
        (b"", "target is missing"),
    ],
)
def test_unreadable_content(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(FamilyError, match=message):
        read(tmp_path, content)


def test_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(FamilyError, match="cannot be read"):
        read_family(tmp_path, (tmp_path,))


def test_reading_runs_nothing(tmp_path: Path) -> None:
    spoof = f"__import__('pathlib').Path({str(tmp_path / 'ran')!r}).touch()"
    with pytest.raises(FamilyError):
        read(tmp_path, TEXT.replace('"sm / ty"', f'"""{spoof}"""'))
    assert not (tmp_path / "ran").exists()


def test_the_space_is_pruned_by_sizes_limits_and_whole_divisions(tmp_path: Path) -> None:
    family = read(tmp_path)
    # threads: 1, 2. sm / ty whole: ty = 2 and 4 for each sm, never 3. Bytes of a panel:
    # sm / ty * 16384 * 4 <= 1 MiB leaves sm / ty <= 16, so all but sm = 64 with ty = 2.
    space = family.space(Gemm(m=64, n=16384, k=64), LIMITS)
    expected = {
        (sm, ty) for sm in (16, 32, 64) for ty in (2, 4) if sm // ty * 16384 * 4 <= 1048576
    }
    assert {(c["sm"], c["ty"]) for c in space} == expected
    assert space.size == len(expected) * 2 * 2


def test_the_default_is_valid_and_near_what_is_declared(tmp_path: Path) -> None:
    family = read(tmp_path)
    default = family.default(Gemm(m=64, n=64, k=64), LIMITS)
    assert {**default} | {"threads": 0} == {"sm": 32, "ty": 4, "order": "ij", "threads": 0}
    # Half the panels fit: the declared sm = 32 no longer does.
    crowded = Gemm(m=64, n=65536, k=64)
    moved = family.default(crowded, LIMITS)
    assert moved["sm"] == 16
    assert moved in family.space(crowded, LIMITS)


def test_no_default_in_an_empty_space(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match=r"'tiled' has no valid configuration for 64x.*autotune"):
        read(tmp_path).default(Gemm(m=64, n=10**7, k=64), LIMITS)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Gemm(m=1, n=1, k=1), None),
        (Gemm(m=1, n=1, k=1, layout="tt"), None),
        (Gemm(m=1, n=1, k=1, accuracy="strassen"), None),
        (Gemm(m=1, n=1, k=1, dtype="float16"), "tiled handles float32, float64, not float16"),
        (Gemm(m=1, n=1, k=1, out_dtype="float64"), "tiled writes float32 results, not float64"),
        (
            Gemm(m=1, n=1, k=1, dtype="float64", out_dtype="float32"),
            "tiled writes float64 results, not float32",
        ),
    ],
)
def test_what_a_family_can_serve(tmp_path: Path, problem: Gemm, reason: str | None) -> None:
    assert read(tmp_path).unsupported(problem) == reason


def test_looser_families_serve_looser_problems_only(tmp_path: Path) -> None:
    family = read(tmp_path, TEXT.replace('"ieee"', '"strassen"'))
    assert family.unsupported(Gemm(m=1, n=1, k=1)) == "tiled has accuracy strassen, not ieee"
    assert family.unsupported(Gemm(m=1, n=1, k=1, accuracy="strassen")) is None


def test_configurations_take_the_family_s_own_values(tmp_path: Path) -> None:
    family = read(tmp_path)
    values: dict[str, Value] = {"threads": True, "order": "ij", "ty": 4.0, "sm": 16}
    conformed = family.conform(values)
    assert conformed.json == Configuration({"sm": 16, "ty": 4, "order": "ij", "threads": 1}).json
    assert list(conformed) == ["sm", "ty", "order", "threads"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sm": 48}, r"tiled\.sm must be one of 16, 32, 64, got 48"),
        ({"order": "ij'; import os"}, r"tiled\.order must be one of ij, ji"),
        ({"tx": 1}, "'tx' is unknown"),
        ({"sm": 16.5}, r"tiled\.sm must be one of"),
    ],
)
def test_nothing_else_conforms(tmp_path: Path, change: dict[str, Value], message: str) -> None:
    values: dict[str, Value] = {"threads": 1, "order": "ij", "ty": 4, "sm": 16}
    with pytest.raises(SpaceError, match=message):
        read(tmp_path).conform({**values, **change})
    with pytest.raises(SpaceError, match="'sm' is missing"):
        read(tmp_path).conform({"threads": 1, "order": "ij", "ty": 4})


def test_the_digest_covers_the_file_and_every_template(tmp_path: Path) -> None:
    digests = [read(tmp_path).digest, read(tmp_path, TEXT.replace("tiles", "blocks")).digest]
    (tmp_path / "_lib").mkdir()
    (tmp_path / "_lib" / "inner.j2").write_text("one\n")
    (tmp_path / "_lib" / "outer.j2").write_text("{% include '_lib/inner.j2' %}\n")
    path = tmp_path / "tiled.toml"
    path.write_text(TEXT)
    template = tmp_path / "tiled.py.j2"
    template.write_text("{% if ty > 3 %}\n{% include '_lib/outer.j2' %}\n{% endif %}\n")
    digests.append(read_family(path, (tmp_path,)).digest)
    (tmp_path / "_lib" / "inner.j2").write_text("two\n")
    digests.append(read_family(path, (tmp_path,)).digest)
    (tmp_path / "_lib" / "unrelated.j2").write_text("three\n")
    assert read_family(path, (tmp_path,)).digest == digests[-1]
    assert len(set(digests)) == len(digests)
    assert read(tmp_path).digest == digests[0]


FRAGMENT = """\
[parameters]
chunk = { values = [1, 2, 4], default = 2, runtime = true }

[derived]
half = "tiles // 2"

[[restrictions]]
expr = "chunk <= half"
reason = "two chunks at least"
"""
INCLUDING = 'include = ["schedule/part.toml"]\n' + TEXT.replace(
    "[derived]", '[derived]\ntiles = "sm // 8 * chunk"'
)


def read_including(folder: Path, text: str = INCLUDING, fragment: str = FRAGMENT) -> KernelFamily:
    spaces = folder / "spaces"
    (spaces / "schedule").mkdir(parents=True, exist_ok=True)
    (spaces / "schedule" / "part.toml").write_text(fragment)
    (folder / "tiled.toml").write_text(text)
    (folder / "tiled.py.j2").write_text("# {{ ty }}\n")
    return read_family(folder / "tiled.toml", (folder,), (folder / "own", spaces))


def test_a_fragment_s_parameters_and_restrictions_follow_the_family_s(tmp_path: Path) -> None:
    family = read_including(tmp_path)
    assert [p.name for p in family.parameters] == ["sm", "ty", "order", "threads", "chunk"]
    assert family.runtime_parameters == ("sm", "chunk")
    assert list(family.derived)[-2:] == ["panel_bytes", "half"]
    assert family.restrictions[-1].text == "chunk <= half"
    space = family.space(Gemm(64, 64, 64), LIMITS)
    assert {configuration["chunk"] for configuration in space} == {1, 2, 4}


def test_values_of_several_families_are_a_list_with_a_name(tmp_path: Path) -> None:
    """It may stand in a fragment of its own; an unused one does no harm."""
    lists = "[lists]\nheights = [2, 3, 4]\nothers = [1]\n"
    text = TEXT.replace("values = [2, 3, 4]", 'values = "heights"')
    for family in (
        read_including(tmp_path, 'include = ["schedule/part.toml"]\n' + text, lists),
        read_including(tmp_path, text.replace("[derived]", f"{lists}\n[derived]")),
    ):
        assert [p.values for p in family.parameters if p.name == "ty"] == [(2, 3, 4)]


def test_the_digest_covers_fragments(tmp_path: Path) -> None:
    before = read_including(tmp_path).digest
    assert before == read_including(tmp_path).digest
    assert before != read_including(tmp_path, fragment=FRAGMENT + "\n").digest
    (tmp_path / "own" / "schedule").mkdir(parents=True)
    (tmp_path / "own" / "schedule" / "part.toml").write_text(FRAGMENT.replace("4]", "8]"))
    assert read_including(tmp_path).parameters[-1].values == (1, 2, 8)  # first match wins


# What is replaced in the family's file and in the fragment, and what the message must say.
FAULTY_INCLUDES = {
    "missing": (("part.toml", "port.toml"), None, r"tiled.toml: include\[1\] must be a file in"),
    "outside": (("schedule/part", "../tiled"), None, r"include\[1\] must be a file in .*own or"),
    "no text": (('["schedule/part.toml"]', "[1]"), None, r"include\[1\] must be a file .*got 1"),
    "no list": (('["schedule/part.toml"]', "1"), None, "include must be a list"),
    "twice": (('.toml"]', '.toml", "schedule/part.toml"]'), None, r"include\[2\] must not repeat"),
    "defined twice": (None, ("chunk =", "sm ="), r"part.toml: parameters.sm is defined twice"),
    "other keys": (None, ("[derived]", "[launch]\n[derived]"), r"part.toml: launch is not a key"),
    "includes": (None, ("[par", "include = []\n[par"), "part.toml: include is not a key"),
    "undefined": (("tiles =", "tales ="), None, r"part.toml: derived.half = .* uses 'tiles'"),
    "no TOML": (None, ("[derived]", "[derived"), "part.toml: must be valid TOML"),
}


@pytest.mark.parametrize("fault", FAULTY_INCLUDES)
def test_errors_of_fragments_name_their_file(fault: str, tmp_path: Path) -> None:
    change, fragment_change, message = FAULTY_INCLUDES[fault]
    text = INCLUDING.replace(*change) if change else INCLUDING
    fragment = FRAGMENT.replace(*fragment_change) if fragment_change else FRAGMENT
    with pytest.raises(FamilyError, match=message):
        read_including(tmp_path, text, fragment)


CUDA = """\
family = "tiled"
operation = "gemm"
target = "cuda"
template = "tiled.cu.j2"
accuracy = "ieee"
summary = "Tiles in shared memory"

[parameters]
sm = { values = [32, 64, 128, 256], default = 64 }
sk = { values = [32, 64, 96, 128], default = 64 }
sn = { values = [8, 16, 64], default = 16 }
tx = { values = [2, 4, 8] , default = 4 }
min_blocks = { values = [1, 2] }

[derived]
threads = "(sm / 4) * (sk / tx)"
registers = "4 * tx * itemsize // 4 + 32"
shared_bytes = "sn * (sm + sk) * itemsize"

[[restrictions]]
expr = "threads >= 32"
reason = "at least a warp"

[launch]
grid = ["ceildiv(K, sk)", "ceildiv(M, sm)", "1"]
block = ["sk / tx", "sm / 4", "1"]
shared_bytes = "shared_bytes"
resident_blocks = "min_blocks"
workspace_bytes = "M * K * itemsize"

[[launch.before]]
kernel = "pad"
when = "M % sm != 0"
grid = ["ceildiv(M, 32)", "1", "1"]
block = ["32", "8", "1"]

[[launch.after]]
kernel = "add"
when = "min_blocks > 1"
grid = ["1", "1", "1"]
block = ["sm * sn / 4", "1", "1"]

[presets.small]
summary = "One block fits twice"
sm = 32
min_blocks = 2

[presets.wide]
summary = "Wide tiles"
sk = 128
min_blocks = 1
"""

H200 = find_gpu("h200").limits
PROBLEM = Gemm(m=512, n=512, k=512)


def read_cuda(folder: Path, text: str = CUDA) -> KernelFamily:
    path = folder / "tiled.toml"
    path.write_text(text)
    (folder / "tiled.cu.j2").write_text("\n")
    return read_family(path, (folder,))


def test_the_launch_is_read(tmp_path: Path) -> None:
    launch = read_cuda(tmp_path).launch
    assert launch is not None
    assert [each.text for each in launch.grid] == ["ceildiv(K, sk)", "ceildiv(M, sm)", "1"]
    assert launch.block[0].evaluate({"sk": 32, "tx": 4}) == 8
    assert launch.shared_bytes.text == "shared_bytes"
    assert launch.resident_blocks.text == "min_blocks"
    assert launch.workspace_bytes is not None
    assert launch.workspace_bytes.text == "M * K * itemsize"
    (before,), (after,) = launch.before, launch.after
    assert (before.kernel, before.when.text, after.kernel) == ("pad", "M % sm != 0", "add")
    assert [each.text for each in before.block] == ["32", "8", "1"]
    assert after.block[0].evaluate({"sm": 32, "sn": 8}) == 64


def test_most_of_a_launch_is_optional(tmp_path: Path) -> None:
    start, end = CUDA.index("resident_blocks"), CUDA.index("[presets.small]")
    launch = read_cuda(tmp_path, CUDA[:start] + CUDA[end:]).launch
    assert launch is not None
    assert (launch.workspace_bytes, launch.before, launch.after) == (None, (), ())
    assert launch.resident_blocks.evaluate({}) == 1


@pytest.mark.parametrize("zeroed", ["6", "M * K * itemsize + 4"])
def test_zeros_are_words_of_the_workspace(tmp_path: Path, zeroed: str) -> None:
    after = 'workspace_bytes = "M * K * itemsize"\n'
    family = read_cuda(tmp_path, CUDA.replace(after, f'{after}zeroed_bytes = "{zeroed}"\n'))
    configuration = family.default(PROBLEM, H200)
    planner = Planner(family, configuration, PROBLEM.dtype, H200)
    with pytest.raises(SpaceError, match="zeroed_bytes must be whole words of 4 bytes within"):
        planner.plan(PROBLEM)


def test_device_limits_are_added(tmp_path: Path) -> None:
    family = read_cuda(tmp_path)
    texts = [restriction.text for restriction in family.restrictions]
    assert texts[0] == "threads <= max_threads_per_block"
    assert texts[-1] == "threads >= 32"
    assert all(restriction.reason for restriction in family.restrictions)


@pytest.mark.parametrize("device", ["t4", "h200", "rtx5090"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exactly_what_fits_the_device_is_valid(tmp_path: Path, device: str, dtype: str) -> None:
    family = read_cuda(tmp_path)
    limits = find_gpu(device).limits
    problem = Gemm(m=512, n=512, k=512, dtype=dtype)
    space = family.space(problem, limits)
    expected = 0
    values = {parameter.name: parameter.values for parameter in family.parameters}
    for sm in values["sm"]:
        for sk in values["sk"]:
            for sn in values["sn"]:
                for tx in values["tx"]:
                    threads = int(sm) // 4 * int(sk) // int(tx)
                    blocks = blocks_per_multiprocessor(
                        limits,
                        threads=threads,
                        registers=4 * int(tx) * problem.itemsize // 4 + 32,
                        shared_bytes=int(sn) * (int(sm) + int(sk)) * problem.itemsize,
                    )
                    expected += min(blocks, 2)  # min_blocks may be 1, or 1 and 2
    assert 0 < space.size == expected < space.cartesian


def test_divisions_of_the_launch_are_whole(tmp_path: Path) -> None:
    family = read_cuda(tmp_path, CUDA.replace('"sm / 4", "1"]', '"sm / 4", "sk / 64"]'))
    space = family.space(PROBLEM, H200)
    assert {configuration["sk"] for configuration in space} == {64, 128}
    reasons = [step.reason for step in space.funnel()]
    assert "sk / 64 must be a whole number (launch.block[2])" in reasons
    # Those that the derived names have too are counted once.
    assert len({step.expr for step in space.funnel()}) == len(space.funnel())


def test_all_names_of_a_configuration(tmp_path: Path) -> None:
    family = read_cuda(tmp_path)
    configuration = {"sm": 64, "sk": 32, "sn": 8, "tx": 4, "min_blocks": 1}
    names = family.values(configuration, PROBLEM, H200)
    assert (names["threads"], names["registers"], names["shared_bytes"]) == (128, 48, 3072)
    assert (names["M"], names["itemsize"], names["compute_capability"]) == (512, 4, 90)
    with pytest.raises(SpaceError, match=r"tiled\.sm must be one of"):
        family.values({**configuration, "sm": 1}, PROBLEM, H200)


def test_values_need_whole_divisions(tmp_path: Path) -> None:
    family = read_cuda(tmp_path, CUDA.replace("(sk / tx)", "(sk / 64)"))
    configuration = {"sm": 64, "sk": 32, "sn": 8, "tx": 4, "min_blocks": 1}
    with pytest.raises(SpaceError, match=r"'tiled' has no threads for .*sk=32.* not whole"):
        family.values(configuration, PROBLEM, H200)


def test_presets_are_whole_configurations(tmp_path: Path) -> None:
    presets = read_cuda(tmp_path).presets
    assert list(presets) == ["small", "wide"]
    small = {"sm": 32, "sk": 64, "sn": 16, "tx": 4, "min_blocks": 2}
    assert presets["small"].configuration == Configuration(small)
    assert presets["wide"].configuration["sk"] == 128
    assert presets["wide"].summary == "Wide tiles"


# What is replaced in CUDA, by what, and what the message must say.
CUDA_FAULTS = {
    "no launch": ("[launch]", "[lunch]", "launch.grid is missing"),
    "no block": ('block = ["sk', 'bock = ["sk', "launch.block is missing"),
    "two extents": (', "sm / 4", "1"]', ', "sm / 4"]', "launch.block must be three expressions"),
    "grid": ('"ceildiv(K, sk)"', '"ceildiv(K, sx)"', r"launch\.grid = .* uses 'sx'"),
    "key": ("workspace_bytes", "workspace_size", r"launch\.workspace_size is not a key"),
    "zeroed": ("workspace_bytes", "zeroed_bytes", r"launch\.workspace_bytes is missing: zeroed_b"),
    "resident": ('"min_blocks"', '"min_block"', r"launch\.resident_blocks = 'min_block' uses"),
    "size": ('"shared_bytes"\nres', "0\nres", r"launch\.shared_bytes must be one line of text"),
    "before": ('kernel = "pad"', "", r"launch\.before\[1\]\.kernel is missing"),
    "kernel": ('"pad"', '"pad me"', r"launch\.before\[1\]\.kernel must be letters"),
    "when": ('"M % sm != 0"', '"M % sm !="', r"before\[1\]\.when is not an expression"),
    "no registers": ("registers = ", "register_count = ", r"derived\.registers is missing"),
    "cpu limit": ("threads >= 32", "threads <= max_threads", r"uses 'max_threads'"),
    "argument": ("tx = {", "lda = {", r"parameters\.lda is the name of"),
    "type": ("tx = {", "T = {", r"parameters\.T is the name of"),
    "summary": ("tx = {", "summary = {", r"parameters\.summary is the name of"),
    "preset value": ("sm = 32\n", "sm = 48\n", r"presets\.small\.sm must be one of its values 32"),
    "preset type": ("sm = 32\n", "sm = 32.0\n", r"presets\.small\.sm must be one of its values"),
    "preset key": ("sm = 32\n", "sx = 32\n", r"presets\.small\.sx is not a key"),
    "preset gap": ("min_blocks = 2\n", "", r"presets\.small\.min_blocks is missing, and the par"),
    "preset summary": ('summary = "Wide tiles"\n', "", r"presets\.wide\.summary is missing"),
}


@pytest.mark.parametrize(
    ("whole", "old", "new", "message"),
    [
        *((TEXT, *fault) for fault in FAULTS.values()),
        *((CUDA, *fault) for fault in CUDA_FAULTS.values()),
    ],
    ids=[*FAULTS, *(f"cuda-{name}" for name in CUDA_FAULTS)],
)
def test_faults_name_file_key_and_expectation(
    tmp_path: Path, whole: str, old: str, new: str, message: str
) -> None:
    assert old in whole
    reading = read_cuda if whole == CUDA else read
    with pytest.raises(FamilyError, match=message) as caught:
        reading(tmp_path, whole.replace(old, new))
    assert str(caught.value).startswith(f"{tmp_path / 'tiled.toml'}: ")
    assert "\n" not in str(caught.value)


def test_other_targets_have_no_launch(tmp_path: Path) -> None:
    text = CUDA.replace('"cuda"', '"cpu"')
    with pytest.raises(FamilyError, match="launch is not a key"):
        read_cuda(tmp_path, text)


def test_numba_cuda_families_have_the_same_names(tmp_path: Path) -> None:
    family = read_cuda(tmp_path, CUDA.replace('"cuda"', '"numba-cuda"'))
    assert family.space(PROBLEM, H200).size == read_cuda(tmp_path).space(PROBLEM, H200).size


def test_parameters_at_the_call_are_for_cuda_alone(tmp_path: Path) -> None:
    text = CUDA.replace("[8, 16, 64]", "[8, 16, 64], runtime = true")
    assert read_cuda(tmp_path, text).runtime_parameters == ("sn",)
    other = text.replace('target = "cuda"', 'target = "numba-cuda"')
    with pytest.raises(
        FamilyError, match=r"sn\.runtime must be false: numba-cuda kernels take no"
    ):
        read_cuda(tmp_path, other)
