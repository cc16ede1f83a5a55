"""The patches change exactly the lines that they are about."""

import pytest

from gradsieve.errors import BuildError
from gradsieve_hvd.horovod_build.patches import PATCHES, Patch, patch_sources

ROOT = """project(horovod CXX)

set(CMAKE_CXX_STANDARD 14)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
string(REPLACE "-O2" "-O3" CMAKE_C_FLAGS_RELWITHDEBINFO "${CMAKE_C_FLAGS_RELWITHDEBINFO}")
string(REPLACE "-O2" "-O3" CMAKE_CXX_FLAGS_RELWITHDEBINFO "${CMAKE_CXX_FLAGS_RELWITHDEBINFO}")
    string(PREPEND GLOO_CMAKE "set(CMAKE_CXX_STANDARD 17)\\n")
"""
TORCH = """if(NOT Pytorch_VERSION VERSION_LESS "1.5.0")
    set(CMAKE_CXX_STANDARD 14)
endif()
"""
UTILITIES = """macro(SET_OUTPUT_DIR)
    string(REGEX REPLACE "${PROJECT_SOURCE_DIR}(/)?" "" SUB_FOLDER "${CURRENT}")
endmacro()
"""
CUDA = """set(CMAKE_CUDA_STANDARD 11)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
"""
PROCESS_SETS = """  gloo_context.InitializeForProcessSet(global_gloo_context,
                                       registered_global_ranks);
"""
GLOO_CONTEXT = """  assert(global_context.IsEnabled());
"""
GLOO_DEVICE = """  GLOO_ENFORCE_NE(rv, -1, strerror(errno));
  GLOO_ENFORCE_NE(rv, -1);
"""
MPI_CONTROLLER = """#include <numeric>
void MPIController::CrossRankBitwiseAnd(std::vector<long long>& bitvector,
  int ret_code = MPI_Allreduce(MPI_IN_PLACE, bitvector.data(), count,
                               MPI_LONG_LONG_INT, MPI_BAND, mpi_ctx_.mpi_comm);
void MPIController::CrossRankBitwiseOr(std::vector<long long>& bitvector,
  int ret_code = MPI_Allreduce(MPI_IN_PLACE, bitvector.data(), count,
                               MPI_LONG_LONG_INT, MPI_BOR, mpi_ctx_.mpi_comm);
"""
OPERATIONS = """    status = Status::UnknownError(ex.what());
bool RunLoopOnce(HorovodGlobalState& state) {
                        std::chrono::microseconds(long(
                            state.parameter_manager.CycleTimeMs() * 1000.)) -
bool horovod_mpi_built() {
"""


@pytest.fixture
def source(tmp_path):
    files = {
        "CMakeLists.txt": ROOT,
        "cmake/Utilities.cmake": UTILITIES,
        "horovod/torch/CMakeLists.txt": TORCH,
        "horovod/common/ops/cuda/CMakeLists.txt": CUDA,
        "horovod/common/process_set.cc": PROCESS_SETS,
        "horovod/common/operations.cc": OPERATIONS,
        "horovod/common/mpi/mpi_controller.cc": MPI_CONTROLLER,
        "horovod/common/gloo/gloo_context.cc": GLOO_CONTEXT,
        "third_party/gloo/gloo/transport/tcp/device.cc": GLOO_DEVICE,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("standard", [17, 20])
def test_the_standard_is_raised_at_the_root_and_for_torch(source, standard):
    patch_sources(source, standard)
    assert f"\nset(CMAKE_CXX_STANDARD {standard})\n" in (source / "CMakeLists.txt").read_text()
    assert (
        f"    set(CMAKE_CXX_STANDARD {standard})\n" in (source / "horovod/torch/CMakeLists.txt").read_text()
    )


def test_every_other_line_stays_as_released(source):
    patch_sources(source, 17)
    changed = [
        (old, new)
        for old, new in zip(
            ROOT.splitlines(), (source / "CMakeLists.txt").read_text().splitlines(), strict=True
        )
        if old != new
    ]
    assert [old.partition("_")[0] for old, _new in changed] == [
        "set(CMAKE",
        'string(REPLACE "-O2" "-O3" CMAKE',
    ]
    assert [new for _old, new in changed][1].startswith('string(REPLACE "-O2 -g" "-O3" CMAKE_CXX_FLAGS')


def test_another_release_is_refused_with_the_file_and_the_line_expected(source):
    (source / "horovod/torch/CMakeLists.txt").write_text(TORCH.replace("14", "17"))
    with pytest.raises(
        BuildError, match=r"horovod/torch/CMakeLists.txt.*set\(CMAKE_CXX_STANDARD 14\).*0 times"
    ):
        patch_sources(source, 20)


def test_a_line_that_stands_twice_is_refused():
    patch = Patch("file", "line", lambda standard: f"line {standard}")
    with pytest.raises(BuildError, match="2 times"):
        patch.apply("line\nline\n", 17)


def test_each_patch_changes_its_line():
    for patch in PATCHES:
        assert patch.apply(patch.old, 20) != patch.old
