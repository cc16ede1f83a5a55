"""What others have written, made fit for a log and a terminal."""

from __future__ import annotations

import re

_BREAKS = re.compile("[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+ *")
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def one_line(text: object) -> str:
    """Return ``text`` in one line, without control characters.

    A program's last words, a webhook's refusal or a coordinator's message could otherwise begin lines of our
    log, or steer the terminal of whoever reads them. Such characters stay visible by their numbers, and so do
    the marks that turn the direction of writing.
    """
    line = _BREAKS.sub(" ", str(text)).strip()
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], line)
