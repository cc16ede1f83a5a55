"""kopf starts and ends the operator, and asks the API server for nothing on its own account."""

import kopf

from gradsieve_operator import handlers


def test_kopf_looks_for_no_namespaces_and_no_kinds_which_a_role_could_not_allow():
    settings = kopf.OperatorSettings()
    handlers.configure(settings)
    assert settings.scanning.disabled
    assert not kopf.get_default_registry()._watching.get_all_selectors()
