"""An operator of some namespaces asks for nothing that a Role cannot allow."""

import kopf
import pytest

from gradsieve_operator import handlers
from gradsieve_operator.cluster.operator import Options


@pytest.mark.parametrize(
    ("namespaces", "disabled"), [((), False), (("research",), True)], ids=["all", "some"]
)
def test_kopf_looks_for_namespaces_and_kinds_only_where_it_serves_the_whole_cluster(namespaces, disabled):
    settings = kopf.OperatorSettings()
    handlers.configure(settings, Options(namespaces=namespaces))
    assert settings.scanning.disabled is disabled
