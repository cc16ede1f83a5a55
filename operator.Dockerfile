# The operator's image: kopf, the operator's package, no torch, no root, no shell needed.
#
#   docker build -f operator.Dockerfile -t gradsieve-operator .
#
# Any base with Python 3.11 to 3.13 and its venv module will do: --build-arg BASE=...
ARG BASE=python:3.13-slim-bookworm

FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY pyproject.toml constraints.txt ./
# The project's own requirements name torch: of them only the operator's extra goes into the image.
RUN python3 -c "import tomllib; \
print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['operator'], sep='\n')" \
      > requirements.txt \
    && python3 -m venv /opt/gradsieve \
    && /opt/gradsieve/bin/pip install --constraint constraints.txt --requirement requirements.txt \
    && /opt/gradsieve/bin/pip uninstall --yes pip
COPY operator/gradsieve_operator /opt/gradsieve/src/gradsieve_operator
RUN /opt/gradsieve/bin/python -m compileall -q /opt/gradsieve/src

FROM ${BASE}
COPY --from=build /opt/gradsieve /opt/gradsieve
# kopf asks for the user's name, and ids that a cluster picks have none.
ENV PATH=/opt/gradsieve/bin:/usr/local/bin:/usr/bin:/bin PYTHONPATH=/opt/gradsieve/src PYTHONUNBUFFERED=1 \
    LOGNAME=gradsieve-operator
USER 65532:65532
# By module, never by path: a folder called "operator" on the path would hide the standard library's.
CMD ["kopf", "run", "-m", "gradsieve_operator", "--all-namespaces"]
