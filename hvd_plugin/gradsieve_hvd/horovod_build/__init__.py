"""Build Horovod 0.28.1 for a current torch: `gradsieve build-horovod`.

The released sdist asks for C++14, which torch's headers refuse since 2.1. The steps: look at the environment
(`environment`), say what is missing (`toolchain`, `checks`), fetch the sdist (`sources`), raise the standard
(`patches`), compile (`compilation`, `process`), make the library paths relative (`repair`), keep the wheel
(`cache`), install it (`installation`). `pipeline` puts them in order, `command` is the command line.
"""
