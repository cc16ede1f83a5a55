"""A rank's program imports torch and numba without the garbage collector, and has it otherwise as ever."""

import os
import subprocess
import sys

import pytest

from gradsieve_hvd.launcher.python_command import BOOTSTRAP

COLLECTIONS = "import gc; collections = lambda: sum(g['collections'] for g in gc.get_stats())\n"
# Without what tests do to start sooner: these see torch's compiler being imported.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(program, *, folder=None):
    done = subprocess.run(
        [sys.executable, str(BOOTSTRAP), "-c", COLLECTIONS + program],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env=ENVIRONMENT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_nothing_is_collected_while_torch_is_imported_and_its_objects_are_never_looked_at_again():
    program = "before = collections()\nimport torch\nprint(before, collections(), gc.get_freeze_count())"
    before, after, frozen = map(int, run(program))
    assert after == before
    assert frozen > 100_000
    assert frozen > 10 * int(run("import torch\nprint(len(gc.get_objects()))")[0])


@pytest.mark.parametrize(
    ("late", "most"),  # by plain Python some hundreds, and for numba 68
    [
        ("import torch._dynamo", 100),
        ("torch.optim.SGD([torch.ones(1, requires_grad=True)], 0.1)", 100),
        ("import numba", 10),
    ],
)
def test_what_is_imported_late_is_not_looked_at_meanwhile_but_may_be_collected(late, most):
    program = f"import torch\nbefore, frozen = collections(), gc.get_freeze_count()\n{late}\n"
    collected, more = map(int, run(program + "print(collections() - before, gc.get_freeze_count() - frozen)"))
    assert collected < most
    assert more <= 0


def test_the_programs_own_cycles_are_collected_afterwards():
    assert run(
        """
import torch, weakref
class Node: pass
first = Node(); first.itself = first; gone = weakref.ref(first); del first
[[] for _ in range(100_000)]
kept = [[] for _ in range(100_000)]
print(gc.isenabled(), gone())
"""
    ) == ["True", "None"]


def test_a_program_that_has_switched_the_collector_off_finds_it_so():
    assert run("gc.disable(); import torch\nprint(gc.isenabled())") == ["False"]


@pytest.mark.parametrize("content", ["raise ImportError('no such GPU')", "1 / 0"])
def test_an_import_that_fails_is_the_same_error_and_leaves_the_collector_on(tmp_path, content):
    (tmp_path / "torch.py").write_text(content)
    caught = "print(type(error).__name__, gc.isenabled(), gc.get_freeze_count())"
    said = run(f"try:\n  import torch\nexcept Exception as error:\n  {caught}", folder=tmp_path)
    assert said == [{"r": "ImportError", "1": "ZeroDivisionError"}[content[0]], "True", "0"]


def test_another_hook_that_watches_torch_being_found_sees_it_too():
    """As tools do that measure programs; they come before the program, in a `sitecustomize`, or in it."""
    hook = """
import sys, importlib.machinery
class Watching:
    def __init__(self, who): self.who = who
    def find_spec(self, name, path=None, target=None):
        if name == "torch": print(self.who)
sys.meta_path.insert(0, Watching("first")); sys.meta_path.insert(2, Watching("second"))
import torch
"""
    assert run(hook) == ["first", "second"]


def test_without_torch_the_error_is_pythons_own(tmp_path):
    done = subprocess.run(
        [sys.executable, "-S", "-E", str(BOOTSTRAP), "-c", "import torch"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "ModuleNotFoundError: No module named 'torch'" in done.stderr


def test_torch_is_found_as_by_python_itself():
    about = "torch.__file__, type(torch.__loader__).__name__, torch.__spec__.origin, inspect.getsource(torch)"
    says = f"import torch, inspect\nprint({about})"
    plain = subprocess.run(
        [sys.executable, "-c", says],
        capture_output=True,
        text=True,
        timeout=120,
        env=ENVIRONMENT,
        check=True,
    )
    assert run(says) == plain.stdout.split()
