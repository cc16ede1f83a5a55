"""The ``gradsieve`` command itself."""

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
