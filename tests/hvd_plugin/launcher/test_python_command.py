"""Python programs run under the bootstrap, and notice nothing of it."""

import json
import subprocess
import sys

import pytest

from gradsieve_hvd.launcher.python_command import BOOTSTRAP, rank_command

WHO = "import sys,json; print(json.dumps([__name__, globals().get('__file__'), sys.argv, sys.path[0]]))"


@pytest.mark.parametrize(
    ("command", "at"),
    [
        pytest.param("python3 train.py --lr 1", 1, id="a file"),
        pytest.param("python3 -u -X dev -W ignore train.py", 6, id="options with and without values"),
        pytest.param("/opt/python3.12 -m pkg.train -c x", 1, id="a module"),
        pytest.param("python3 -Xdev -c pass", 2, id="code"),
    ],
)
def test_the_bootstrap_goes_between_pythons_options_and_the_program(command, at):
    words = command.split()
    found = rank_command(tuple(words))
    assert found[1:] == (*words[1:at], str(BOOTSTRAP), *words[at:])


@pytest.mark.parametrize(
    "command", ["bash train.sh", "python3 --version", "python3 -", "python3", "pythonic train.py"]
)
def test_other_commands_are_left_alone(command):
    assert rank_command(tuple(command.split()))[1:] == tuple(command.split()[1:])


@pytest.mark.parametrize("name", ["python", "python3"])
def test_python_is_the_running_interpreter(name):
    assert rank_command((name, "a.py")) == (sys.executable, str(BOOTSTRAP), "a.py")


def result(folder, *words):
    found = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=30, check=False
    )
    return found.returncode, found.stdout, found.stderr


@pytest.mark.parametrize(
    "program", [["who.py", "1", "-m"], ["sub/who.py"], ["-m", "who", "2"], ["-c", WHO, "3"]]
)
def test_a_program_sees_what_plain_python_shows_it(tmp_path, program):
    (tmp_path / "sub").mkdir()
    for file in ("who.py", "sub/who.py"):
        (tmp_path / file).write_text(WHO)
    plain, ours = (json.loads(result(tmp_path, *words)[1]) for words in (program, [str(BOOTSTRAP), *program]))
    assert ours == plain


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("raise SystemExit(3)", 3),
        ("import sys; sys.exit()", 0),
        ("import sys; sys.exit('why')", 1),
        ("raise ValueError('boom')", 1),
        ("def f(): 1/0\nf()", 1),
        ("pass", 0),
        ("(", 1),
    ],
)
def test_status_and_traceback_are_plain_pythons(tmp_path, code, status):
    (tmp_path / "a.py").write_text(code)
    plain, ours = result(tmp_path, "a.py"), result(tmp_path, str(BOOTSTRAP), "a.py")
    assert ours[0] == plain[0] == status
    assert ours[2] == plain[2]


def test_a_failing_program_runs_no_exit_handlers_and_loses_no_output(tmp_path):
    (tmp_path / "a.py").write_text(
        "import atexit, sys; atexit.register(print, 'late'); print('early'); sys.exit(4)"
    )
    assert result(tmp_path, str(BOOTSTRAP), "a.py")[:2] == (4, "early\n")
    (tmp_path / "b.py").write_text("import atexit; atexit.register(print, 'late'); print('early')")
    assert result(tmp_path, str(BOOTSTRAP), "b.py")[:2] == (0, "early\nlate\n")


def test_a_programs_own_excepthook_is_used(tmp_path):
    (tmp_path / "a.py").write_text(
        "import sys; sys.excepthook = lambda *e: print('own', e[1]); raise ValueError('boom')"
    )
    assert result(tmp_path, str(BOOTSTRAP), "a.py") == (1, "own boom\n", "")


def test_functions_of_the_program_can_be_pickled(tmp_path):
    code = "import pickle\ndef f(): return 5\nprint(pickle.loads(pickle.dumps(f))())"
    (tmp_path / "a.py").write_text(code)
    assert result(tmp_path, str(BOOTSTRAP), "a.py")[1] == "5\n"
