"""The build tells how far it is."""

import io

from rich.console import Console

from gradsieve_hvd.horovod_build.progress import BarProgress, LineProgress, shown_on


def test_a_line_comes_with_each_phase_and_every_15_seconds():
    now, lines = [100.0], []
    progress = LineProgress(lines.append, lambda: now[0])
    progress.phase("compiling")
    for now[0] in (110.0, 114.9, 115.0, 120.0, 130.0):
        progress.percent(int(now[0]) - 100)
        progress.tick()
    assert lines == [
        "build-horovod: compiling (0 s)",
        "build-horovod: compiling 15 % (15 s)",
        "build-horovod: compiling 30 % (30 s)",
    ]


def test_a_new_phase_forgets_the_old_share():
    lines: list[str] = []
    progress = LineProgress(lines.append, lambda: 0.0)
    progress.percent(70)
    progress.phase("installing")
    assert lines == ["build-horovod: installing (0 s)"]


def test_a_pipe_gets_lines_and_a_terminal_a_bar():
    with shown_on(Console(file=io.StringIO())) as progress:
        assert isinstance(progress, LineProgress)
    screen = io.StringIO()
    with shown_on(Console(file=screen, force_terminal=True)) as progress:
        assert isinstance(progress, BarProgress)
        progress.phase("compiling")
        progress.percent(42)
        progress.tick()
    assert "compiling" in screen.getvalue()
    assert "42%" in screen.getvalue()
