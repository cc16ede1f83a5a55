"""Write the CustomResourceDefinitions: ``python -m gradsieve_operator.schema manifests/crds``."""

from __future__ import annotations

import sys
from pathlib import Path

from gradsieve_operator.schema import crd_files

for name, content in crd_files().items():
    Path(sys.argv[1], name).write_text(content)
