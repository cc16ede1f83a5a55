"""The Python that README and docs show runs, word for word, on real ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from real_ranks import run_alone

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    "README.md",
    *(f"docs/{name}.md" for name in ("ddp", "horovod", "methods", "optimizer", "state")),
)


@pytest.mark.timeout(150)
@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_code_in_the_document_runs(document: str, tmp_path: Path) -> None:
    text = (ROOT / document).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert blocks
    program = f"import os\nos.chdir({str(tmp_path)!r})\n" + "\n".join(blocks) + "\nprint('reached the end')\n"
    status, output = run_alone(program, ranks=2, folder=tmp_path)
    assert status == 0, output
    assert output.count("reached the end") == 2
