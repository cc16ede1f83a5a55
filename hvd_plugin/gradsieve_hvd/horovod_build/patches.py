"""The lines of Horovod 0.28.1 that must change for a current torch, lost ranks, and misleading host names."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gradsieve.errors import BuildError

RECIPE = 6
"""Part of the cache's key: raise it when the patches or the flags change what is built."""


@dataclass(frozen=True, slots=True)
class Patch:
    """Replace one place of one file; `new` is made from the C++ standard wanted."""

    file: str
    old: str
    new: Callable[[int], str]

    def apply(self, text: str, standard: int) -> str:
        """Return `text` with the place replaced.

        Raises:
            BuildError: `old` does not stand in `text` exactly once: it is another release.
        """
        found = text.count(self.old)
        if found != 1:
            raise BuildError(
                f"Horovod's {self.file} is not that of release 0.28.1: expected the line {self.old!r} once, "
                f"found it {found} times; build from the unchanged release"
            )
        return text.replace(self.old, self.new(standard))


PATCHES = (
    # Upstream merged 14 -> 17 after its last release; torch's headers have asked for more since.
    Patch(
        "CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", lambda standard: f"set(CMAKE_CXX_STANDARD {standard})"
    ),
    Patch(
        "horovod/torch/CMakeLists.txt",
        "    set(CMAKE_CXX_STANDARD 14)",
        lambda standard: f"    set(CMAKE_CXX_STANDARD {standard})",
    ),
    # The CUDA standard is named apart; nvcc 13 and its headers ask for C++17.
    Patch(
        "horovod/common/ops/cuda/CMakeLists.txt",
        "set(CMAKE_CUDA_STANDARD 11)",
        lambda _standard: "set(CMAKE_CUDA_STANDARD 17)",
    ),
    # As a regular expression the folder's name loses the library when it holds a `+` or a parenthesis.
    Patch(
        "cmake/Utilities.cmake",
        'string(REGEX REPLACE "${PROJECT_SOURCE_DIR}(/)?" "" SUB_FOLDER',
        lambda _standard: 'string(REPLACE "${PROJECT_SOURCE_DIR}/" "" SUB_FOLDER',
    ),
    # A process set's context is never enabled, and so never closed: after a loss survivors' connections to
    # each other stay open, and each waits for the others until Gloo's time is up, 30 s by default.
    Patch(
        "horovod/common/process_set.cc",
        "  gloo_context.InitializeForProcessSet(global_gloo_context,",
        lambda _standard: (
            "  gloo_context.Enable();\n  gloo_context.InitializeForProcessSet(global_gloo_context,"
        ),
    ),
    # A process set's context, which is also that of all ranks, knew no interface: HOROVOD_GLOO_IFACE held for
    # the first connections, while gradients went where the host's own name leads, on Debian to 127.0.1.1.
    Patch(
        "horovod/common/gloo/gloo_context.cc",
        "  assert(global_context.IsEnabled());",
        lambda _standard: (
            "  assert(global_context.IsEnabled());\n  gloo_iface_ = global_context.gloo_iface_;"
        ),
    ),
    # Without an interface, a host whose name does not resolve ended with a segmentation fault.
    Patch(
        "third_party/gloo/gloo/transport/tcp/device.cc",
        "  GLOO_ENFORCE_NE(rv, -1);",
        lambda _standard: (
            '  GLOO_ENFORCE_EQ(rv, 0, "HOROVOD_GLOO_IFACE is not set, and this host\'s name ", '
            'attr.hostname, " does not resolve: ", gai_strerror(rv));'
        ),
    ),
    # A rank whose operation has failed, because another was lost, went on and negotiated the next ones over
    # the same connections. Those that had not noticed yet took its messages for parts of the operation: too
    # long a one ended their process, a shorter one went into their gradients.
    Patch(
        "horovod/common/operations.cc",
        "    status = Status::UnknownError(ex.what());",
        lambda _standard: (
            "    status = Status::UnknownError(ex.what());\n"
            "    if (horovod_global.control_operation == LibType::GLOO &&\n"
            "        dynamic_cast<const std::runtime_error*>(&ex) != nullptr) {\n"
            "      for (auto& e : entries) {\n"
            "        timeline.End(e.tensor_name, nullptr);\n"
            "        e.FinishWithCallback(status);\n"
            "      }\n"
            "      throw;\n"
            "    }"
        ),
    ),
    # While it has nothing to do, each rank's background thread asks the others for work once in a
    # millisecond: on a slow link a good part of what it carries. The time can be set before Horovod runs
    # only, when nobody knows yet whether another library will carry the gradients, nor over which link.
    Patch(
        "horovod/common/operations.cc",
        "bool RunLoopOnce(HorovodGlobalState& state) {",
        lambda _standard: (
            "static std::atomic<double> shortest_cycle_ms{0.};\n\n"
            "bool RunLoopOnce(HorovodGlobalState& state) {"
        ),
    ),
    Patch(
        "horovod/common/operations.cc",
        "                            state.parameter_manager.CycleTimeMs() * 1000.)) -",
        lambda _standard: (
            "                            std::max(state.parameter_manager.CycleTimeMs(),\n"
            "                                     shortest_cycle_ms.load()) * 1000.)) -"
        ),
    ),
    Patch(
        "horovod/common/operations.cc",
        "bool horovod_mpi_built() {",
        lambda _standard: (
            "void horovod_set_shortest_cycle(double ms) { shortest_cycle_ms = ms; }\n\n"
            "bool horovod_mpi_built() {"
        ),
    ),
    # In this sum ranks agree on what is ready, once a cycle. Its messages of few bytes wait in a slow link's
    # queue behind gradients, which other libraries carry, for up to a second; MPI's own wait spins all the
    # while, with ranks that share cores against those that compute. A pause is a quarter of what has been
    # waited already, so that it costs a negotiation a quarter of its time at the most.
    Patch(
        "horovod/common/mpi/mpi_controller.cc",
        "#include <numeric>",
        lambda _standard: "#include <algorithm>\n#include <chrono>\n#include <numeric>\n#include <thread>",
    ),
    Patch(
        "horovod/common/mpi/mpi_controller.cc",
        "  int ret_code = MPI_Allreduce(MPI_IN_PLACE, bitvector.data(), count,\n"
        "                               MPI_LONG_LONG_INT, MPI_BAND, mpi_ctx_.mpi_comm);",
        lambda _standard: (
            "  MPI_Request request;\n"
            "  int ret_code = MPI_Iallreduce(MPI_IN_PLACE, bitvector.data(), count,\n"
            "                                MPI_LONG_LONG_INT, MPI_BAND,\n"
            "                                mpi_ctx_.mpi_comm, &request);\n"
            "  auto asked = std::chrono::steady_clock::now();\n"
            "  for (int done = 0; ret_code == MPI_SUCCESS;) {\n"
            "    ret_code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);\n"
            "    if (done) {\n"
            "      break;\n"
            "    }\n"
            "    auto waited = std::chrono::steady_clock::now() - asked;\n"
            "    if (waited > std::chrono::microseconds(50)) {\n"
            "      std::this_thread::sleep_for(\n"
            "          std::min<std::chrono::steady_clock::duration>(\n"
            "              waited / 4, std::chrono::milliseconds(5)));\n"
            "    }\n"
            "  }"
        ),
    ),
    # Debugging symbols would be most of the library's 65 MiB, and nobody looks at them.
    Patch(
        "CMakeLists.txt",
        'string(REPLACE "-O2" "-O3" CMAKE_CXX_FLAGS_RELWITHDEBINFO',
        lambda _standard: 'string(REPLACE "-O2 -g" "-O3" CMAKE_CXX_FLAGS_RELWITHDEBINFO',
    ),
)


def patch_sources(source: Path, standard: int) -> None:
    """Change the unpacked sdist at `source` in place so that it compiles as C++ `standard`.

    Raises:
        BuildError: as `Patch.apply`.
    """
    for patch in PATCHES:
        file = source / patch.file
        file.write_text(patch.apply(file.read_text(encoding="utf-8"), standard), encoding="utf-8")
