"""What people call on their own machines: ``gradsieve submit`` and ``gradsieve top``.

Both need a kubeconfig and nothing else of the operator's. They use the `kubernetes` package, not the
operator's own client: it knows all that a kubeconfig may hold (contexts, login plug-ins, proxies), and a
command that waits for one answer at a time has no use for an event loop. The ``gradsieve`` command, which
belongs to the plug-in, knows the modules here by name only.
"""
