"""A program that ends while something is exchanged waits for it a little, rather than being aborted."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

PROGRAM = """
import sys, time
from gradsieve_hvd.optimizer import exchange_thread
from gradsieve_hvd.optimizer.exchange_thread import ExchangeThread

class Alone:
    rank, size = 0, 1

    def send_receive(self, message, to, source):
        return message

def begin(transport):
    def finish():
        time.sleep(float(sys.argv[1]))
        print("exchanged", flush=True)
    return finish

exchange_thread._FAREWELL_SECONDS = 1.5
ExchangeThread(Alone(), 60.0).submit(begin, "a gradient")
raise SystemExit(3)
"""


@pytest.mark.parametrize(("seconds", "said"), [(0.3, "exchanged"), (60, "")])
def test_it_is_waited_for_but_not_long_and_the_status_is_the_programs(seconds, said):
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(seconds)], capture_output=True, text=True, timeout=50, check=False
    )
    assert (ended.returncode, ended.stdout.strip()) == (3, said), ended.stderr
    assert time.monotonic() - began < 45
