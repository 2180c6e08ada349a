"""What the command line says, to beginners and to those who mistyped, and what it can print."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from records import record

from autotune.cli import main, parse
from autotune.cli.records import shipped
from autotune.cli.research import summary
from autotune.cli.terminal import folded, plain, table
from autotune.core.configuration import Candidate
from autotune.core.device import Device
from autotune.core.errors import MissingDependencyError
from autotune.core.measurement import Measurement, Outcome
from autotune.core.paths import CacheLocations
from autotune.cpu.target import CpuTarget
from autotune.families.family import KernelFamily
from autotune.families.rendering import render
from autotune.operations.problem import ACCURACIES, Gemm
from autotune.research.sweeps import SweepResult
from autotune.search import open_study
from autotune.store import TuningCache
from autotune.targets.families import load_families
from autotune.targets.registry import make_target
from autotune.tuning.context import TuningContext

ROOT = Path(__file__).parents[3]
TRIANGULAR = str(ROOT / "examples" / "triangular")
COLUMNS = 100

needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None,
    reason="mpi4py is not installed: pip install '.[mpi]'",
)


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = main(arguments)
    except SystemExit as stop:  # argparse leaves this way
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    """The one line that a command says instead of working, once it has said what it begins."""
    got, out, err = run(capsys, *arguments)
    assert got == code, err
    assert out == ""
    begun, _, told = err.rpartition("autotune: error: ")
    assert begun.startswith("tuning ") or "\n" not in begun, err
    assert begun.count("\n") <= 1, err
    assert told.count("\n") == 1, err
    return told


class TestBeginnings:
    def test_alone_it_helps(self, capsys: pytest.CaptureFixture[str]) -> None:
        code, out, err = run(capsys)
        assert (code, err) == (0, "")
        for command in ("tune", "tune --preset cpu", "cache list", "space", "families", "doctor"):
            assert f"autotune {command}" in out
        assert "autotune --help" in out
        assert "from autotune import matmul" in out

    def test_a_command_imports_no_other(self) -> None:
        script = (
            "import sys; from autotune.cli import _COMMANDS, parse; parse(['families']); "
            "print(*sorted({'numpy', 'optuna'} & sys.modules.keys()), "
            "*({f'autotune.cli.{each}' for each, _ in _COMMANDS.values()} & sys.modules.keys()))"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.stdout.split() == ["autotune.cli.spaces"], done.stderr

    def test_options_of_all_commands_may_come_first(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        after = run(capsys, "cache", "path", "--cache", str(tmp_path), "--json")
        assert run(capsys, "--json", "--cache", str(tmp_path), "cache", "path") == after
        assert run(capsys, f"--cache={tmp_path}", "--json", "cache", "path") == after
        assert run(capsys, "cache", "--cache", str(tmp_path), "--json", "path") == after
        assert after[0] == 0
        assert "COMMAND" in refused(capsys, "--json")

    @pytest.mark.parametrize("module", ["autotune.cli", "argparse"])
    def test_ctrl_c_before_anybody_listens_prints_nothing(self, module: str) -> None:
        script = (
            "import os, signal, sys\n"
            "class Interrupt:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
            "import autotune.__main__ as command\n"
            "sys.meta_path.insert(0, Interrupt())\n"
            "sys.exit(command.main())\n"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode == -signal.SIGINT
        assert (done.stdout, done.stderr) == ("", "")

    def test_what_completes_may_be_missing(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("argcomplete", "argcomplete.shell_integration"):
            monkeypatch.setitem(sys.modules, name, None)
        assert "pip install argcomplete" in refused(capsys, "completion", "bash", code=1)

    def test_an_ignored_ctrl_c_stays_ignored(self) -> None:
        script = (
            "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
            "import autotune.__main__ as command; sys.argv = ['autotune', 'cache', 'path']; "
            "command.main(); print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.stdout.endswith("True\n"), done.stderr


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["tunee"], "tune"),
        (["devcie"], "device"),
        (["cache", "lst"], "list"),
        (["tune", "--shpae", "8x8x8"], "--shape"),
        (["cache", "list", "--shiped"], "--shipped"),
        (["tune", "gem"], "gemm"),
        (["tune", "--target", "cudda"], "cuda"),
        (["tune", "--target", "cpu", "--dtype", "flot64"], "float64"),
        (["tune", "--target", "cpu", "--layout", "nnt"], "nt"),
        (["tune", "--target", "cpu", "--accuracy", "strasen"], "strassen"),
        (["tune", "--target", "cpu", "--sampler", "tpee"], "tpe"),
        (["tune", "--target", "hybrid", "--operands", "block"], "blocks"),
        (["tune", "--target", "mpi", "--local", "cda"], "cuda"),
        (["tune", "--preset", "gpus"], "gpu"),
        (["families", "gotto", "--target", "cpu"], "goto"),
        (["emit", "goto", "--target", "cpu", "--preset", "dirct"], "direct"),
        (["emit", "goto", "--target", "cpu", "--set", "vectr=1"], "vector"),
    ],
)
def test_what_was_meant_is_said(
    capsys: pytest.CaptureFixture[str], arguments: list[str], meant: str
) -> None:
    assert f"did you mean {meant!r}?" in refused(capsys, *arguments)


def test_a_list_is_of_kernels_or_of_what_is_tuned(capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, "list")
    assert "got 'list'; 'families' lists kernels, your own by name, and 'cache list' what" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["bench", "--seed", "-1"], "seed must be a whole number >= 0, got -1"),
        (
            ["bench", "--ladder", "--seed", str(2**63)],
            "seed must be a whole number < 2^63, got 9223372036854775808",
        ),
        (["tune", "--workers", "0"], "workers must be a whole number >= 1, got 0"),
        (["sweep", "--workers", "-1"], "workers must be a whole number >= 1, got -1"),
        (
            ["tune", "--preset", "cpu", "--workers", "0"],
            "workers must be a whole number >= 1, got 0",
        ),
        (
            ["tune", "--shapes", "none", "--workers", "-2"],
            "workers must be a whole number >= 1, got -2",
        ),
        (["tune", "--workers", "1.5"], "--workers: invalid int value: '1.5'"),
        (["tune", "--layout", ""], "layout must be one of nn, nt, tn, tt, got ''"),
        (
            ["tune", "--devices", "0-3"],
            "--devices names GPUs, got '0-3' with --target cpu: leave one of them out",
        ),
        (["tune", "--gpus", "0"], "gpus must be at least 1, got 0"),
        (["space", "--operation", "gemv"], "one of your own needs --families DIR"),
        (["tune", "gemv"], "one of your own needs --families DIR"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_any_process(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    told: str,
) -> None:
    monkeypatch.setattr(CpuTarget, "evaluator", lambda *_, **__: pytest.fail("a process began"))
    target = "hybrid" if "--gpus" in arguments else "cpu"
    where = ["--device", "h200"] if "--gpus" in arguments else []
    code, out, err = run(capsys, *arguments, "--target", target, *where)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert told in err


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        ("families --families", 2, "a path must be shorter than"),
        pytest.param(
            *("families --cache", 2, "a path must be shorter than"),
            marks=pytest.mark.skipif(
                sys.version_info >= (3, 13), reason="to Python 3.13 it is a path that is not there"
            ),
        ),
        ("cache list --cache", 1, "File name too long): use --cache elsewhere"),
    ],
)
def test_a_path_longer_than_the_system_takes_is_refused(
    capsys: pytest.CaptureFixture[str], command: str, code: int, told: str
) -> None:
    found, out, err = run(capsys, *command.split(), "x" * 5000)
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert told in err


def test_the_command_that_shows_what_restrictions_remove_works(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.toml").write_text(
        'family = "mine"\noperation = "gemm"\ntarget = "cpu"\ntemplate = "mine.py.j2"\n'
        'accuracy = "ieee"\nsummary = "Mine"\n'
        "[parameters]\ntile = { values = [1, 2], default = 1 }\n"
        '[[restrictions]]\nexpr = "tile > M"\nreason = "never here"\n'
    )
    (tmp_path / "mine.py.j2").write_text("def gemm(): pass\n")
    given = ["--target", "cpu", "--families", str(tmp_path), "--shape", "9x8x7"]
    told = refused(capsys, "emit", "mine", *given)
    [command] = re.findall("`autotune (.*?)`", told)
    assert all(option in told for option in ("--families", "--shape", "--dtype"))
    [counted] = document(capsys, *command.split(), *given)
    assert counted["valid"] == 0


class TestOffers:
    @pytest.mark.parametrize("command", ["tune", "bench", "space", "sweep"])
    @pytest.mark.parametrize(
        ("option", "told"),
        [
            (["--dtype", "half"], "dtype must be one of float32, float64"),
            (["--dtype", "int8"], "dtype must be one of float32, float64"),
            (["--accuracy", "tf32"], "accuracy must be one of ieee, strassen"),
        ],
    )
    def test_what_no_family_has_is_one_line(
        self, capsys: pytest.CaptureFixture[str], command: str, option: list[str], told: str
    ) -> None:
        line = refused(capsys, command, "--target", "cpu", *option)
        assert told in line
        assert line.count("have") == 1

    @pytest.mark.parametrize(
        ("alias", "dtype"), [("fp32", "float32"), ("Single", "float32"), ("double", "float64")]
    )
    def test_other_names_of_dtypes(
        self, capsys: pytest.CaptureFixture[str], alias: str, dtype: str
    ) -> None:
        [counted] = document(capsys, "space", "loops", "--target", "cpu", "--dtype", alias)
        assert counted["problem"]["dtype"] == dtype
        assert Gemm(1, 2, 3, dtype=alias).dtype == dtype

    def test_results_may_have_a_type_of_their_own(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        where = ["--device", "h200", "--dtype", "fp16", "--out-dtype"]
        emitted = document(capsys, "emit", "naive", *where, "fp32")
        assert "const __half* __restrict__ a" in emitted["source"]
        assert "float* __restrict__ c" in emitted["source"]
        for other in ("float64", "bfloat16", "int8"):
            code, _, err = run(capsys, "space", *where, other)
            assert code == 2
            assert "out_dtype must be one of float16, float32, which the families for" in err
            assert err.count("\n") == 1

    @pytest.mark.thorough
    def test_some_families_have_results_of_a_type_of_their_own(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        where = ["--device", "h200", "--dtype", "fp16", "--out-dtype", "fp32"]
        counted = document(capsys, "space", *where)
        assert {each["problem"]["out_dtype"] for each in counted} == {"float32"}
        valid = {each["family"] for each in counted if each["valid"]}
        assert valid == {"block", "mma", "naive", "skinny", "tiled", "wgmma"}

    def test_a_family_of_ones_own_adds_its_dtype(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        (tmp_path / "mine.toml").write_text(
            'family = "mine"\noperation = "gemm"\ntarget = "cpu"\ntemplate = "mine.py.j2"\n'
            'accuracy = "ieee"\nsummary = "Mine"\ndtypes = ["float16"]\n'
            "[parameters]\ntile = { values = [1, 2], default = 1 }\n"
        )
        (tmp_path / "mine.py.j2").write_text("def gemm(): pass\n")
        where = ["--target", "cpu", "--families", str(tmp_path), "--dtype", "fp16"]
        counted = {each["family"]: each for each in document(capsys, "space", *where)}
        assert counted["mine"]["valid"] == 2
        assert counted["goto"]["valid"] == 0
        assert counted["goto"]["unsupported"] == "goto handles float32, float64, not float16"
        code, out, _ = run(capsys, "space", *where)
        assert code == 0
        [line] = [line for line in out.splitlines() if line.startswith("goto")]
        assert "0 valid" in line
        assert "not float16" in line


class TestSpace:
    @pytest.mark.parametrize(
        "where",
        [
            pytest.param(["--device", "h200"], marks=pytest.mark.thorough),
            ["pipelined", "--device", "h200"],
            ["--target", "cpu"],
            ["--target", "hybrid", "--device=t4"],
        ],
    )
    @pytest.mark.parametrize("verbose", [[], ["-v"]])
    def test_it_fits(
        self, capsys: pytest.CaptureFixture[str], where: list[str], verbose: list[str]
    ) -> None:
        code, out, err = run(capsys, "space", *where, *verbose)
        assert code == 0, err
        assert max(map(len, out.splitlines())) <= COLUMNS

    def test_it_shows_what_each_restriction_removes(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        where = ["space", "volkov", "--target", "cuda", "--device", "h200"]
        [counted] = document(capsys, *where)
        steps = counted["restrictions"]
        before = [counted["cartesian"], *(step["remaining"] for step in steps)]
        removed = [one - other for one, other in pairwise(before)]
        _, short, _ = run(capsys, *where)
        _, long, _ = run(capsys, *where, "-v")
        rows = [line.split() for line in short.splitlines() if line.strip()[:1].isdigit()]
        told = [int(row[1].replace(",", "")) for row in rows if row[2].endswith("%")]
        assert told == [count for count in removed if count]
        assert 0 < removed.count(0) < len(removed)
        assert f"{removed.count(0)} more restrictions remove nothing (-v" in short
        flat = " ".join(long.split())
        assert all(f"{step['reason']}: {step['expr']}" in flat for step in steps)
        assert "remove nothing" not in long


def test_families_are_those_of_the_target(capsys: pytest.CaptureFixture[str]) -> None:
    default = make_target(None).name
    listed = document(capsys, "families")
    assert {family["target"] for family in listed} == {default}
    assert {family["family"] for family in listed} == load_families(target=default).keys()
    assert {family["target"] for family in document(capsys, "families", "--target", "mpi")} == {
        "mpi"
    }
    named = document(capsys, "families", "naive", "volkov")
    assert [(family["family"], family["target"]) for family in named] == [
        ("naive", "cuda"),
        ("naive", "numba-cuda"),
        ("volkov", "cuda"),
    ]
    _, out, _ = run(capsys, "families", "--target", "cpu")
    assert max(map(len, out.splitlines())) <= COLUMNS
    assert out.endswith("--target cuda, numba-cuda, mpi, hybrid\n")


class TestEmit:
    def winner(self, **changes: Any) -> str:
        """The id of a stored record of this machine."""
        problem = Gemm(96, 80, 64, dtype="float64", layout="tn", threads=1)
        device = make_target("cpu").device(problem)
        family = load_families(target="cpu")["goto"]
        stored = record(
            problem=problem,
            candidate=Candidate("goto", family.default(problem, device.limits)),
            fingerprint=device.fingerprint,
            toolchain=dict(device.toolchain),
            **{"family_digest": family.digest, **changes},
        )
        TuningCache(CacheLocations.at().create().database).add(stored)
        return stored.id

    def test_the_winner_of_a_record(self, capsys: pytest.CaptureFixture[str]) -> None:
        id_ = self.winner()
        emitted = document(capsys, "emit", "--record", id_[:7])
        stored = TuningCache(CacheLocations.at().database).get(id_)
        family = load_families(target="cpu")["goto"]
        source = render(family, stored.candidate.configuration, dtype="float64", layout="tn")
        assert emitted["source"] == source.text
        assert emitted["record"] == id_
        assert emitted["problem"] == stored.problem
        assert emitted["configuration"] == dict(stored.candidate.configuration)

    def test_of_a_family_that_has_changed_since(self, capsys: pytest.CaptureFixture[str]) -> None:
        id_ = self.winner(family_digest="0" * 16)
        code, out, err = run(capsys, "emit", "--record", id_)
        assert code == 0
        assert out.startswith('"""gemm for cpu: family goto, float64, layout tn.')
        assert "have changed since" in err
        assert err.count("\n") == 1

    def test_a_shipped_record(self, capsys: pytest.CaptureFixture[str]) -> None:
        first = shipped()[0]
        family = load_families(target=first.target)[first.candidate.family]
        code, out, err = run(capsys, "emit", "--record", first.id[:8], "--json")
        if first.candidate.configuration.keys() != {each.name for each in family.parameters}:
            # Its parameters were others when that was tuned; the binary serves all the same.
            assert (code, err.count("\n")) == (2, 1)
            assert f"family {family.name!r} takes" in err
            return
        assert code == 0, err
        emitted = json.loads(out)
        assert emitted["target"] == first.target
        assert emitted["configuration"] == dict(first.candidate.configuration)
        assert emitted["resources"]["estimated"]["threads"] >= 32

    def test_a_record_says_the_rest_itself(self, capsys: pytest.CaptureFixture[str]) -> None:
        id_ = self.winner()
        assert "--dtype" in refused(capsys, "emit", "--record", id_, "--dtype", "float32")
        assert "'goto'" in refused(capsys, "emit", "goto", "--record", id_)
        assert "'feed'" in refused(capsys, "emit", "--record", "feed")
        assert "--record ID" in refused(capsys, "emit")

    def test_a_preset(self, capsys: pytest.CaptureFixture[str]) -> None:
        where = ["emit", "volkov", "--target", "cuda", "--device", "h200", "--quiet"]
        preset = load_families(target="cuda")["volkov"].presets["matmul7"]
        emitted = document(capsys, *where, "--preset", "matmul7")
        stated = {name: preset.configuration[name] for name in preset.stated}
        assert stated.items() <= emitted["configuration"].items()
        assert document(capsys, *where)["configuration"] != emitted["configuration"]

    def test_several_gpus_that_are_not_here(self, capsys: pytest.CaptureFixture[str]) -> None:
        where = ["--target", "hybrid", "--device", "h200", "--gpus", "4"]
        emitted = document(capsys, "emit", "rows", *where)
        assert emitted["configuration"]["devices"] == 4

    @needs_mpi
    def test_ranks_with_gpus_that_are_not_here(self, capsys: pytest.CaptureFixture[str]) -> None:
        where = ["--target", "mpi", "--local", "cuda", "--device", "xavier", "--ranks", "4"]
        grid = ["--set", "rows=2", "--set", "columns=2"]
        emitted = document(capsys, "emit", "gpu_summa", *where, *grid)
        assert "tuned_product" in emitted["source"]
        counted = {each["family"]: each["valid"] for each in document(capsys, "space", *where)}
        assert counted["gpu_summa"] > 0
        assert counted["summa"] == 0
        assert "known by description only" in refused(capsys, "tune", *where)
        assert "--local cuda" in refused(capsys, "space", "--target=mpi", "--device=h200")


class TestOwnOperations:
    def test_they_are_counted_and_printed(self, capsys: pytest.CaptureFixture[str]) -> None:
        own = ["--families", TRIANGULAR]
        # A family `rows` of gemm there is for other targets.
        [counted] = document(capsys, "space", "rows", "--target", "cpu", *own)
        assert counted["problem"]["formula"] == "alpha * tril(A) @ B + beta * C"
        assert counted["valid"] > 0
        assert document(capsys, "space", "--operation", "trmm", *own)[0]["family"] == "rows"
        emitted = document(capsys, "emit", "rows", "--target", "cpu", *own)
        assert emitted["operation"] == "trmm"
        assert "def trmm(" in emitted["source"]

    def test_their_records_are_shown_verified_and_printed(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        family = load_families(target="cpu", operation="trmm", extra=[TRIANGULAR])["rows"]
        id_ = self.stored(family)
        assert "trmm 64x64x64-float32" in run(capsys, "cache", "list")[1]
        own = ["--families", TRIANGULAR]
        [row] = document(capsys, "cache", "verify", *own)["records"]
        assert (row["status"], row["detail"]) == ("ok", "")
        [row] = document(capsys, "cache", "verify")["records"]
        assert "--families" in row["detail"]
        assert document(capsys, "emit", "--record", id_, *own)["operation"] == "trmm"
        assert "--families" in refused(capsys, "emit", "--record", id_)

    def test_what_is_measured_is_looked_up(self, capsys: pytest.CaptureFixture[str]) -> None:
        where = ["--families", TRIANGULAR, "--target", "cpu", "--shape", "9x9x9"]
        line = refused(capsys, "bench", "trmm", *where, code=1)
        assert f"autotune tune trmm --shape 9x9x9 --target cpu --families {TRIANGULAR}" in line

    @staticmethod
    def stored(family: KernelFamily) -> str:
        from autotune.operations.problem import Product

        problem = Product(64, 64, 64, defined=family.defined)
        device: Device = make_target("cpu").device(problem)
        found = record(
            problem=problem,
            operation="trmm",
            candidate=Candidate("rows", family.default(problem, device.limits)),
            fingerprint=device.fingerprint,
            family_digest=family.digest,
        )
        TuningCache(CacheLocations.at().create().database).add(found)
        return found.id


class TestBench:
    def test_nothing_is_measured_before_everything_can_be(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        TestEmit().winner()
        monkeypatch.setattr(CpuTarget, "evaluator", lambda *_, **__: pytest.fail("measured"))
        options = ["--dtype", "float64", "--layout", "tn", "--threads", "1", "--target", "cpu"]
        shapes = ["--shape", "96x80x64", "--shape", "97x80x64"]
        line = refused(capsys, "bench", *options, *shapes, code=1)
        assert "97x80x64" in line

    def test_a_device_that_is_not_here_is_said_first(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        line = refused(capsys, "bench", "--ladder", "--target", "cuda", "--device", "xavier")
        assert "known by description only" in line


class TestStudies:
    OPTIONS = ("--family", "unrolled", "--shape", "16x16x16", "--target", "cpu")

    @pytest.mark.parametrize("command", ["tune", "sweep"])
    def test_a_named_study_refuses_another_problem(
        self, capsys: pytest.CaptureFixture[str], command: str
    ) -> None:
        work = TuningContext.of(
            Gemm(16, 16, 16),
            target=CpuTarget(),
            device=None,
            families=["unrolled"],
            extra_families=(),
            cache=None,
            options={},
        )
        with open_study(
            work.union, None, "mine", work.studies, subject=work.subject_of()
        ) as study:
            proposal = study.ask()
            assert proposal is not None
            study.tell(proposal, Measurement(Outcome.OK, 1e-3))
        other = ["--dtype", "float64", "--layout", "tn", "--study", "mine"]
        line = refused(capsys, command, *self.OPTIONS, *other)
        assert "dtype is float32 there and float64 here; layout is nn there and tn here" in line

    @pytest.mark.parametrize("command", ["tune", "sweep"])
    def test_a_run_that_fails_at_its_start_leaves_no_study(
        self,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        command: str,
    ) -> None:
        def broken(*_: Any, **__: Any) -> None:
            raise MissingDependencyError("there is no compiler")

        monkeypatch.setattr(CpuTarget, "evaluator", broken)
        assert "no compiler" in refused(capsys, command, *self.OPTIONS, code=1)
        assert list(CacheLocations.at().studies.iterdir()) == []

    def test_a_gpu_that_is_not_here_leaves_no_study(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        refused(capsys, "tune", "--device", "xavier")
        assert list(CacheLocations.at().studies.iterdir()) == []


class TestCaches:
    @pytest.mark.parametrize(
        "command",
        [["cache", "list"], ["cache", "show", "ab"], ["cache", "path"], ["tune"], ["bench"]],
    )
    def test_another_file_is_no_cache(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str]
    ) -> None:
        script = tmp_path / "script.py"
        script.write_text("print()\n")
        where = [] if command[0] == "cache" else ["--target", "cpu"]
        line = refused(capsys, *command, *where, "--cache", str(script))
        assert str(script) in line
        assert script.read_text() == "print()\n"
        exported = tmp_path / "records.jsonl"  # there or not
        assert "autotune cache import" in refused(
            capsys, *command, *where, "--cache", str(exported)
        )

    def test_nothing_there_is_said(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        where = ["--cache", str(tmp_path / "none")]
        assert document(capsys, "cache", "list", *where) == []
        assert "there is no cache at" in run(capsys, "cache", "list", *where)[1]
        assert "no cache at" in refused(capsys, "cache", "show", "feed", *where)
        assert not (tmp_path / "none").exists()

    def test_shipped_records_are_listed_and_shown(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        listed = document(capsys, "cache", "list", "--shipped")
        assert len(listed) > 4
        first = listed[0]["id"]
        assert document(capsys, "cache", "show", first) == listed[0]
        assert first in run(capsys, "cache", "list", "--shipped")[1]
        assert "--shipped" in run(capsys, "cache", "list")[1]
        assert "must have some digits, got ''" in refused(capsys, "cache", "show", "")


class TestFolding:
    def test_lines_are_folded_between_words(self) -> None:
        text = folded("label  ", "a=1 " * 60)
        lines = text.splitlines()
        assert all(len(line) <= COLUMNS for line in lines)
        assert lines[0].startswith("label  a=1 a=1")
        assert all(line.startswith("       a=1") for line in lines[1:])
        assert text.split() == ["label", *["a=1"] * 60]

    def test_what_has_no_words_stays_whole(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert "/" * 300 in folded("at  ", "/" * 300)
        assert folded("label  ", "") == "label"
        monkeypatch.setenv("COLUMNS", "60")
        assert all(len(line) <= 60 for line in folded("x ", "word " * 40).splitlines())

    def test_last_columns_are_folded_below_themselves(self) -> None:
        text = table(("n", "what"), [("1", "word " * 40), ("2", "")], right=["n"], fold=True)
        head, *rows, last = plain(text).splitlines()
        assert head == "n  what"
        assert rows[0].startswith("1  word")
        assert all(line.startswith("   word") for line in rows[1:])
        assert last == "2"


def test_what_a_sweep_says_can_be_pasted() -> None:
    result = SweepResult(
        problem=Gemm(8, 8, 8),
        target="cpu",
        device="Example CPU",
        study="odd study's",
        seed=0,
        size=1,
        wanted=1,
        measured=(),
        seconds=0.1,
        interrupted=False,
    )
    *_, last = summary(result).splitlines()
    assert shlex.split(last)[1:] == ["autotune", "replay", "--study", "odd study's"]


class TestHelp:
    def told(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
        with pytest.raises(SystemExit) as stop:
            parse(arguments)
        assert stop.value.code in (None, 0)
        return capsys.readouterr().out

    @pytest.mark.parametrize("command", ["tune", "bench", "space", "emit", "sweep"])
    def test_rare_options_are_for_those_who_ask(
        self, capsys: pytest.CaptureFixture[str], command: str
    ) -> None:
        short = self.told(capsys, command, "--help")
        every = self.told(capsys, command, "--help-all")
        for rare in ("--ranks", "--gpus", "--operands", "--out-dtype"):
            assert rare in every
            assert rare not in short
        assert "with --target" not in short
        assert "--help-all" in short
        assert short.startswith(f"usage: autotune {command} [options]")

    def test_a_command_s_own_options_come_first(self, capsys: pytest.CaptureFixture[str]) -> None:
        short = self.told(capsys, "tune", "--help")
        titles = re.findall(r"^(\w.*):$", short, re.MULTILINE)
        assert titles[1:] == ["search", "options", "problem", "target", "common"]
        problem = short.partition("problem:")[2]
        assert "--shape" in problem.partition("target:")[0]
        for accuracy in ACCURACIES:
            assert accuracy in problem

    def test_a_command_without_rare_options_has_no_other_help(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert "--help-all" not in self.told(capsys, "completion", "--help")

    def test_cache_alone_prints_its_help(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["cache"]) == 0
        assert "verify" in capsys.readouterr().out
