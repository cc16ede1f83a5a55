"""The build from beginning to end: cached wheel, or fetch, patch, compile, repair, keep."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gradsieve.errors import BuildError
from gradsieve_hvd.horovod_build import cache, sources
from gradsieve_hvd.horovod_build.checks import build_problems
from gradsieve_hvd.horovod_build.compilation import (
    build_environ,
    build_flags,
    link_nccl,
    percent_done,
    wheel_command,
)
from gradsieve_hvd.horovod_build.environment import Environment
from gradsieve_hvd.horovod_build.patches import patch_sources
from gradsieve_hvd.horovod_build.process import run_logged
from gradsieve_hvd.horovod_build.progress import BuildProgress
from gradsieve_hvd.horovod_build.repair import repair_wheel


@dataclass(frozen=True, slots=True)
class Build:
    """One build of Horovod for one environment; its cache entry follows from both."""

    environment: Environment
    environ: Mapping[str, str]
    progress: BuildProgress
    timeout: float

    @property
    def facts(self) -> dict[str, str]:
        """All that decides what the library is."""
        return cache.build_facts(self.environment, build_flags(self.environment), self.environ)

    @property
    def entry(self) -> Path:
        """The cache's folder for this build."""
        return cache.cache_root(self.environ) / cache.entry_name(self.facts)

    @property
    def log(self) -> Path:
        """The log of the last build of this entry; it outlives the build."""
        return self.entry / "build.log"

    def wheel(self, *, force: bool = False) -> Path:
        """Return the wheel's path: the cached one, or a new one.

        Steps: 1. look in the cache (not with `force`); 2. check that all is there; 3. wait for another build
        of the same wheel, and take its result; 4. build.

        Raises:
            BuildError: something is missing (a line each), or a step fails.
        """
        if not force and (wheel := cache.cached_wheel(self.entry)):
            return wheel
        problems = build_problems(self.entry, self.environment.torch.cxx_standard, self.environ)
        if problems:
            raise BuildError("\n".join(problems))
        with cache.build_lock(self.entry, lambda: self.progress.phase("waiting for another build of it")):
            if not force and (wheel := cache.cached_wheel(self.entry)):
                return wheel
            return self._build()

    def _build(self) -> Path:
        self.log.write_text("", encoding="utf-8")
        deadline = time.monotonic() + self.timeout
        with cache.build_folder(self.entry) as folder:
            source = self._fetch(folder, deadline)
            patch_sources(source, self.environment.torch.cxx_standard)
            built = self._compile(source, folder, deadline)
            self.progress.phase("making the library paths relative")
            return cache.store(repair_wheel(built, self.environment, self.facts, folder), self.entry)

    def _fetch(self, folder: Path, deadline: float) -> Path:
        self.progress.phase(f"fetching Horovod {cache.HOROVOD_VERSION}")
        self._run(sources.download_command(folder), "fetching Horovod's sdist with pip", folder, deadline)
        return sources.unpack(folder)

    def _compile(self, source: Path, folder: Path, deadline: float) -> Path:
        self.progress.phase("compiling")
        nccl_folder = folder / "nccl"
        if self.environment.nccl is not None:
            link_nccl(self.environment.nccl, nccl_folder)
        environ = build_environ(self.environment, self.environ, nccl_folder)
        built = folder / "built"
        self._run(wheel_command(source, built), "compiling Horovod", folder, deadline, environ)
        return next(built.glob("*.whl"))

    def _run(
        self,
        command: list[str],
        what: str,
        folder: Path,
        deadline: float,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        def watch(line: str) -> None:
            if (done := percent_done(line)) is not None:
                self.progress.percent(done)

        run_logged(
            command, what=what, folder=folder, environ=environ or self.environ, log=self.log,
            deadline=deadline, on_line=watch, on_tick=self.progress.tick,
        )  # fmt: skip
