"""The Python that README and docs show runs, word for word, on real ranks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from real_ranks import run_alone

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    "README.md",
    *(f"docs/{name}.md" for name in ("ddp", "horovod", "methods", "optimizer", "state", "trainers")),
)
# Each document has names and a folder of its own; the ranks, which take seconds to start, are the same.
ONE_AFTER_THE_OTHER = """
import json, pathlib, sys, os
for document, code in json.loads(pathlib.Path(sys.argv[0]).with_name("documents.json").read_text()):
    folder = pathlib.Path(sys.argv[0]).with_name(document.replace("/", "-"))
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    print("begins", document, flush=True)
    exec(compile(code, document, "exec"), {"__name__": "__main__"})
    print("reached the end of", document, flush=True)
"""


def code_of(document: str) -> str:
    text = (ROOT / document).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert blocks
    return "\n".join(blocks)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str]:
    """Exit status and output of the ranks that have run the code of all documents."""
    folder = tmp_path_factory.mktemp("documents")
    (folder / "documents.json").write_text(json.dumps([(each, code_of(each)) for each in DOCUMENTS]))
    return run_alone(ONE_AFTER_THE_OTHER, ranks=2, folder=folder, timeout=200)


@pytest.mark.timeout(260)
@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_code_in_the_document_runs(document: str, ran: tuple[int, str]) -> None:
    _, output = ran
    assert output.count(f"reached the end of {document}\n") == 2, output


def test_ranks_that_ran_the_code_of_documents_end_well(ran: tuple[int, str]) -> None:
    status, output = ran
    assert status == 0, output
