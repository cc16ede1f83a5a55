"""The ``gradsieve`` command itself."""

import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from gradsieve_hvd import cli


@pytest.fixture
def invoke():
    return lambda *arguments: CliRunner().invoke(cli.main, arguments)


def test_help_lists_the_subcommands_without_importing_them(invoke, monkeypatch):
    for module in (
        "gradsieve_hvd.horovod_build.command",
        "gradsieve_hvd.experiments.demo.command",
        "gradsieve_hvd.launcher.command",
    ):
        monkeypatch.setitem(sys.modules, module, None)
    result = invoke("--help")
    assert result.exit_code == 0
    assert all(name in result.output for name in ("run", "build-horovod", "demo"))


def test_a_subcommand_whose_packages_are_missing_says_so(invoke, monkeypatch):
    monkeypatch.setitem(sys.modules, "gradsieve_hvd.experiments.demo.command", None)
    result = invoke("demo")
    assert result.exit_code == 1
    assert "`gradsieve demo` cannot be used here" in result.output
    assert isinstance(cli.main.get_command(click.Context(cli.main), "run"), click.Command)


@pytest.mark.parametrize(
    ("missing", "calls"),
    [
        (
            "sklearn",
            [
                "simulate modes --scenario slow4 --mode asp --processes 1",
                "simulate timeline --plot timeline.png",
                "bench modes --task digits --until 0.9",
                "bench convergence",
                "bench train --task digits --link none --until 0.9",
                "demo",
                "report gradients",
                "reproduce",
            ],
        ),
        (
            "matplotlib",
            [
                "simulate modes --plot times.png",
                "simulate timeline --plot timeline.png",
                "bench train --link none --until 2.6 --plot losses.png",
                "demo",
                "report gradients",
                "reproduce",
            ],
        ),
    ],
)
def test_before_anything_is_measured_a_missing_package_is_named_with_what_brings_it(
    missing, calls, monkeypatch, tmp_path
):
    """In a process of its own, in which nobody has imported it."""
    monkeypatch.chdir(tmp_path)
    program = f"""if True:
        import json, sys
        sys.modules[{missing!r}] = None
        from click.testing import CliRunner
        from gradsieve_hvd.cli import main
        results = [CliRunner().invoke(main, call.split()) for call in sys.argv[1:]]
        print(json.dumps([(result.exit_code, result.output) for result in results]))
    """
    told = subprocess.run(
        [sys.executable, "-c", program, *calls], capture_output=True, timeout=100, check=True
    )
    for (code, output), call in zip(json.loads(told.stdout), calls, strict=True):
        assert code == 1, call
        assert output.startswith("Error: "), call
        assert output.endswith("; pip install 'gradsieve[demo]' brings it\n"), call
        assert len(output.splitlines()) == 1, call


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "-np", "2", "--link", "fast", "--", "true"], "error: link rate 'fast' is not understood"),
        (["run", "-np", "0", "--", "true"], "error: 0 ranks cannot be started"),
    ],
)
def test_an_expected_error_is_one_line_and_status_2(invoke, arguments, said):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.output.startswith(said)
    assert len(result.output.splitlines()) == 1


def test_an_unknown_subcommand_is_refused(invoke):
    assert invoke("fly").exit_code == 2
