"""What users see of a table."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table


def printed(table: Table) -> str:
    """Return a table as text, on a wide terminal."""
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table)
    return capture.get()
