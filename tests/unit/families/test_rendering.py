from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import autotune
from autotune.core.errors import CacheError, FamilyError, ProblemError, SpaceError
from autotune.core.paths import data_dir
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import Source, render
from autotune.families.templating import _references
from autotune.targets.families import load_families, read_family

if TYPE_CHECKING:
    from autotune.core.configuration import Value
    from autotune.families.family import KernelFamily

TOML = """\
family = "tiny"
operation = "gemm"
target = "cpu"
template = "tiny.py.j2"
accuracy = "ieee"
summary = "For tests"
layouts = ["nn", "tn"]

[parameters]
sm = { values = [16, 32], default = 32 }
block = { values = [64, 128], default = 64, runtime = true }
ty = { values = [2, 3, 4], default = 4 }
order = { values = ["ij", "ji"], default = "ij" }
depth = { values = [1, 2], default = 1, runtime = true }

[derived]
strips = "sm / ty"
strip_bytes = "strips * itemsize"
blocks = "ceildiv(M, block)"
late = "strips * block"
"""

TEMPLATE = '''\
"""{{ banner }}
"""
{# for the readers of templates #}
SM = {{ sm }}
STRIPS = {{ strips }}
STRIP_BYTES = {{ strip_bytes }}
ITEM_SIZE = {{ itemsize }}
DTYPE = "{{ dtype }}"
LAYOUT = "{{ layout }}"
ORDER = "{{ order }}"
SIGNATURE = "{{ signature }}"
{% if ty > 3 %}
WIDE = True
{% endif %}


def gemm({{ arguments }}):
    return
'''

CONFIGURATION: dict[str, Value] = {"sm": 32, "block": 128, "ty": 4, "order": "ji", "depth": 2}


def tiny(folder: Path, template: str = TEMPLATE) -> KernelFamily:
    (folder / "tiny.toml").write_text(TOML)
    (folder / "tiny.py.j2").write_text(template)
    return read_family(folder / "tiny.toml", (folder,))


def test_runtime_parameters_do_not_change_the_source(tmp_path: Path) -> None:
    family = tiny(tmp_path)
    first = render(family, CONFIGURATION)
    assert render(family, {**CONFIGURATION, "block": 64, "depth": 1}) == first
    assert render(family, {**CONFIGURATION, "sm": 16}).digest != first.digest


def test_equal_values_of_other_types_give_the_same_source(tmp_path: Path) -> None:
    family = tiny(tmp_path)
    assert render(family, {**CONFIGURATION, "sm": 32.0}) == render(family, CONFIGURATION)


@pytest.mark.parametrize(
    ("template", "line", "message"),
    [
        ("A = 1\nB = {{ nothing }}\n", 2, "'nothing' is undefined"),
        ("A = {{ blocks }}\n", 1, "'blocks' is undefined"),  # depends on a size
        ("\nA = {{ late }}\n", 2, "'late' is undefined"),  # depends on a runtime parameter
        ("{{ block }}\n", 1, "'block' is undefined"),  # is one
        ("\n\n{{ 1 // (ty - 4) }}\n", 3, "ZeroDivisionError"),
        ("{{ order + 1 }}\n", 1, "TypeError"),
        ("{{ sm.nothing() }}\n", 1, "has no attribute 'nothing'"),
    ],
)
def test_faults_of_a_template_name_file_and_line(
    tmp_path: Path, template: str, line: int, message: str
) -> None:
    family = tiny(tmp_path, template)
    with pytest.raises(FamilyError, match=message) as caught:
        render(family, CONFIGURATION)
    assert str(caught.value).startswith(f"{tmp_path / 'tiny.py.j2'}:{line}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("template", "line", "message"),
    [
        ("A = 1\n{% if %}\n", 2, "Expected an expression"),
        ("{% endif %}\n", 1, "unknown tag 'endif'"),
        ("\n{% include 'gone.j2' %}\n", 2, "must be in .*, and 'gone.j2' is not"),
        ("{% if sm %}\n{% import 'gone.j2' as gone %}\n{% endif %}", 2, "'gone.j2' is not"),
        ("{% include order %}\n", 1, "must be named by a plain string"),
        ("{% include ['tiny.py.j2', order] %}\n", 1, "must be named by a plain string"),
    ],
)
def test_what_is_wrong_before_rendering_is_found_when_the_family_is_read(
    tmp_path: Path, template: str, line: int, message: str
) -> None:
    with pytest.raises(FamilyError, match=message) as caught:
        tiny(tmp_path, template)
    assert str(caught.value).startswith(f"{tmp_path / 'tiny.py.j2'}:{line}: ")


def test_shipped_templates_refer_to_what_a_whole_parse_finds() -> None:
    found = 0
    for path in data_dir("templates").rglob("*.j2"):
        source = path.read_text(encoding="utf-8")
        of_statements = sorted(_references(source, path.name, str(path)))
        assert of_statements == sorted(_references(source, path.name, None)), path
        found += len(of_statements)
    assert found > 100


def test_a_fault_in_a_partial_names_the_partial(tmp_path: Path) -> None:
    (tmp_path / "part.j2").write_text("A = 1\n\n{{ nothing }}\n")
    family = tiny(tmp_path, "{% include 'part.j2' %}\n")
    with pytest.raises(FamilyError, match=r"part\.j2:3: 'nothing' is undefined"):
        render(family, CONFIGURATION)


def test_templates_are_utf8_and_do_not_include_themselves(tmp_path: Path) -> None:
    (tmp_path / "part.j2").write_bytes(b"\xff")
    with pytest.raises(FamilyError, match=rf"^{tmp_path}/part\.j2: a template must be UTF-8"):
        tiny(tmp_path, "{% include 'part.j2' %}\n")
    family = tiny(tmp_path, "{% include 'tiny.py.j2' %}\n")
    with pytest.raises(FamilyError, match="RecursionError"):
        render(family, CONFIGURATION)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            "def gemm(:\n",
            r"/tiny\.py\.j2: .* emits invalid Python: .*, in line 1 of .* 'def gemm\(:'",
        ),
        ("def gem(): pass\n", r"/tiny\.py\.j2: .* must emit a function 'gemm', and emits gem"),
        ("A = 1\n", r"must emit a function 'gemm', and emits none"),
    ],
)
def test_what_is_emitted_is_a_module_with_the_entry(
    tmp_path: Path, template: str, message: str
) -> None:
    with pytest.raises(FamilyError, match=message):
        render(tiny(tmp_path, template), CONFIGURATION)


def test_only_what_the_family_declares_is_rendered(tmp_path: Path) -> None:
    family = tiny(tmp_path)
    with pytest.raises(ProblemError, match=r"dtype of family 'tiny' .* got 'float16'"):
        render(family, CONFIGURATION, dtype="float16")
    with pytest.raises(ProblemError, match=r"layout of family 'tiny' must be one of nn, tn"):
        render(family, CONFIGURATION, layout="nt")
    with pytest.raises(SpaceError, match=r"tiny\.order must be one of ij, ji"):
        render(family, {**CONFIGURATION, "order": 'ij"\nimport os #'})
    with pytest.raises(SpaceError, match=r"has no strips for .*sm / ty"):
        render(family, {**CONFIGURATION, "ty": 3})


SHIPPED = list(load_families(target="cpu").values())


@pytest.mark.sampled(6)
@pytest.mark.parametrize("family", SHIPPED, ids=lambda family: family.name)
@given(data=st.data())
@settings(max_examples=25, suppress_health_check=[HealthCheck.differing_executors])
def test_shipped_families_render_for_whatever_they_declare(
    family: KernelFamily, data: st.DataObject
) -> None:
    configuration = {
        parameter.name: data.draw(st.sampled_from(parameter.values), label=parameter.name)
        for parameter in family.parameters
    }
    dtype = data.draw(st.sampled_from(family.dtypes))
    layout = data.draw(st.sampled_from(family.layouts))
    try:
        source = render(family, configuration, dtype=dtype, layout=layout)
    except SpaceError:  # a division that is not whole
        return
    module = ast.parse(source.text)
    entry = next(
        node
        for node in module.body
        if isinstance(node, ast.FunctionDef) and node.name == source.entry
    )
    names = [argument.arg for argument in entry.args.args]
    assert names[: len(names) - len(source.runtime_parameters)][-1] == "ldc"
    assert tuple(names[names.index("ldc") + 1 :]) == source.runtime_parameters
    assert family.template_digest in (ast.get_docstring(module) or "")
    for line in source.text.splitlines():
        assert line == line.rstrip()
        assert "{{" not in line
        assert "{%" not in line


def test_the_source_does_not_depend_on_the_process(tmp_path: Path) -> None:
    script = (
        "from autotune.targets.families import load_families\n"
        "from autotune.families.rendering import render\n"
        "for f in load_families(target='cpu').values():\n"
        "    for p in ({p.name: p.values[0] for p in f.parameters},):\n"
        "        print(f.name, f.digest, render(f, p).digest)\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONPATH": str(Path(autotune.__file__).parents[1]), "PYTHONHASHSEED": seed},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert len(outputs.pop().splitlines()) == len(SHIPPED)


# --- the program cache ---


def program(text: str = "def gemm(): pass\n") -> Source:
    return Source(text=text, entry="gemm", runtime_parameters=(), target="cpu")


def test_a_program_is_written_once(tmp_path: Path) -> None:
    cache = ProgramCache(tmp_path / "programs")
    source = program("naïve = 1\r\n")
    path = cache.write(source, "tiny")
    assert path == tmp_path / "programs" / "cpu" / f"tiny_{source.digest[:16]}.py"
    assert path.read_bytes() == source.text.encode()
    os.utime(path, ns=(1, 1))
    before = path.stat()
    assert cache.write(source, "tiny") == path
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert path.stat().st_ino == before.st_ino
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_damaged_program_is_replaced(tmp_path: Path) -> None:
    cache = ProgramCache(tmp_path / "programs")
    path = cache.write(program(), "tiny")
    for damage in (b"", b"def gemm(): pasS\n", b"\xff\x00"):
        path.write_bytes(damage)
        assert cache.write(program(), "tiny").read_text() == program().text
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.cold
def test_file_systems_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    path = ProgramCache(tmp_path / "programs").write(program(), "tiny")
    assert path.read_text() == program().text
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_programs_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "programs"
    path = ProgramCache(folder).write(program(), "tiny")
    for private in (folder, path.parent):
        assert private.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(CacheError, match=r"which everybody may write \(mode 777\)"):
        ProgramCache(folder).write(program("another = 1\n"), "tiny")


def test_an_unwritable_place_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(CacheError, match="--cache or AUTOTUNE_CACHE"):
        ProgramCache(file / "programs").write(program(), "tiny")


def test_a_full_disk_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fdopen

    def full(handle: int, *args: object) -> object:
        os.close(handle)
        return real(os.open("/dev/full", os.O_WRONLY), *args)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "fdopen", full)
    cache = ProgramCache(tmp_path / "programs")
    with pytest.raises(CacheError, match=r"No space left on device.*free some space") as caught:
        cache.write(program(), "tiny")
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "programs" / "cpu").iterdir()) == []


WRITER = """
import sys
from pathlib import Path
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import Source

cache = ProgramCache(Path(sys.argv[1]))
sys.stdin.read()
for number in range(200):
    path = cache.write(Source(f"x = {number}\\n" * 500, "gemm", (), "cpu"), "tiny")
    print(path.name, path.stat().st_mtime_ns, path.stat().st_ino)
"""


def test_writers_at_once_agree_on_every_file(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "programs")],
            env={"PYTHONPATH": str(Path(autotune.__file__).parents[1])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for writer in writers:  # all have imported and wait for this
        assert writer.stdin is not None
        writer.stdin.close()
        writer.stdin = None
    seen = {writer.communicate()[0] for writer in writers}
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    # Whoever came first, every process saw the same file with the same time.
    assert len(seen) == 1
    assert len(seen.pop().splitlines()) == 200
    assert len(list((tmp_path / "programs" / "cpu").iterdir())) == 200
