"""An agent's processes: their output, their end, and that not even a daemon escapes.

Each test runs in a process of its own, which adopts and reaps whatever it starts.
"""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(90)

PROGRAM = """
import asyncio, os, sys, time
from gradsieve.errors import LaunchError
from gradsieve_hvd.control.children import Children, has_variable
from gradsieve_hvd.launcher.processes import descendants

DAEMON = '''
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)
'''

async def main():
    children, said = Children(), []
    hear = lambda stream, data: said.append((stream, data))
    {body}
    await children.end()
    assert descendants() == []
    children.close()

asyncio.run(main())
"""


def check(body):
    program = PROGRAM.replace("{body}", body.strip().replace("\n", "\n    "))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_output_and_status_of_each_child():
    check("""
words = [["sh", "-c", f"echo out {n}; echo err >&2; exit {n}"] for n in range(5)]
started = [children.start(command, os.environ, hear) for command in words]
assert [await child.ended for child in started] == [0, 1, 2, 3, 4]
expected = [("stdout", b"out %d\\n" % n) for n in range(5)] + [("stderr", b"err\\n")] * 5
assert sorted(said) == sorted(expected)
""")


def test_a_signal_is_a_status():
    check("""
child = children.start(["sh", "-c", "kill -9 $$"], os.environ, hear)
assert await child.ended == 137
""")


def test_a_child_has_exactly_the_environment_it_was_given():
    check("""
child = children.start(["/usr/bin/env"], {"ONLY": "this"}, hear)
assert await child.ended == 0
assert said == [("stdout", b"ONLY=this\\n")]
""")


def test_a_missing_program_is_an_error_that_names_it():
    check("""
try:
    children.start(["no-such-program"], os.environ, hear)
except LaunchError as error:
    assert "cannot start no-such-program" in str(error)
else:
    raise AssertionError
""")


def test_a_daemon_that_left_its_session_is_ended_too():
    check("""
child = children.start([sys.executable, "-c", DAEMON], os.environ, hear)
assert await child.ended == 0
assert len(descendants()) == 1
""")


def test_what_ignores_sigterm_is_killed():
    check("""
child = children.start(["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done"], os.environ, hear)
while not said:
    await asyncio.sleep(0.01)
began = time.monotonic()
assert await children.end(grace=0.5)
assert time.monotonic() - began >= 0.5
assert await child.ended == 137
""")


def test_one_run_is_ended_and_the_others_are_not():
    check("""
runs = [children.start(["sleep", "1000"], {**os.environ, "RUN": name}, hear) for name in "ab"]
await children.end(has_variable("RUN", "a"))
assert await runs[0].ended == 143
assert not runs[1].ended.done()
""")
