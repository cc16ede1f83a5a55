# `make demo` and `make test` set everything up by themselves; the second set-up finds its stamp and costs nothing.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
.PHONY: help setup test e2e soak manifests release lint format demo clean

PYTHON ?= python3
DEMO_FLAGS ?=
SOAK_FLAGS ?=
PYTEST_FLAGS ?=
E2E_PROCESSES ?= 1
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := hvd,build,link,launch,operator,client,demo,dev

export PIP_DISABLE_PIP_VERSION_CHECK := 1

help:  ## show the targets
	@grep -hE '^[a-z0-9]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9]+):.*## /  make \1\t/' | expand -t 22

setup:  ## virtual environment, pinned packages and Horovod, in .venv
	@die() { echo "set-up: $$*" >&2; exit 2; }
	command -v "$(PYTHON)" >/dev/null || die "no $(PYTHON) found: install Python 3.11, 3.12 or 3.13, or say make PYTHON=..."
	version=$$("$(PYTHON)" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
	case "$$version" in 3.11|3.12|3.13) ;; *) die "Python $$version is not supported: make PYTHON=python3.11 (or 3.12, 3.13)";; esac
	# The stamp names all that the environment was made from: interpreter, place (scripts hold absolute paths), versions, Horovod's recipe.
	inputs=$$({ "$(PYTHON)" -c 'import sys; print(sys.version, sys.base_prefix)'; pwd -P; echo "$(EXTRAS)"
	  cat constraints.txt pyproject.toml hvd_plugin/gradsieve_hvd/horovod_build/*.py; } | sha256sum | cut -d' ' -f1)
	[ "$$(cat $(VENV)/.stamp 2>/dev/null)" != "$$inputs" ] || exit 0
	started=$$SECONDS
	"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || die "the venv module is missing: install the package python3-venv (Debian, Ubuntu)"
	"$(PYTHON)" hvd_plugin/gradsieve_hvd/horovod_build/toolchain.py
	home="$$version $$("$(PYTHON)" -c 'import sys; print(sys.base_prefix)') $$(pwd -P)"
	if [ -e $(VENV) ] && [ "$$(cat $(VENV)/.home 2>/dev/null)" != "$$home" ]; then
	  echo "set-up: $(VENV) was made by another Python or in another folder; making it anew"
	  rm -rf $(VENV)
	fi
	if [ ! -e $(VENV)/.home ]; then
	  "$(PYTHON)" -m venv --clear $(VENV)
	  echo "$$home" > $(VENV)/.home
	fi
	rm -f $(VENV)/.stamp
	echo "set-up: packages (torch is large: minutes on the first time)"
	if [ -t 1 ]; then quiet=; else quiet=--quiet; fi
	$(BIN)/python -m pip install $$quiet --constraint constraints.txt pip
	$(BIN)/python -m pip install $$quiet --constraint constraints.txt hatchling setuptools wheel
	$(BIN)/python -m pip install $$quiet --constraint constraints.txt --no-build-isolation --editable '.[$(EXTRAS)]'
	$(BIN)/gradsieve build-horovod
	echo "set-up: compiling kernels"
	$(BIN)/python -c "import gradsieve.codec, gradsieve.kernels"
	echo "$$inputs" > $(VENV)/.stamp
	echo "set-up: done in $$((SECONDS - started)) s"

test: setup  ## all tests but those on a cluster
	@$(BIN)/python -m pytest -n 3 $(PYTEST_FLAGS)

e2e: setup  ## tests on a real Kubernetes on this machine: root, Go and some Debian packages
	@PYTHONPATH=tests/e2e $(BIN)/python -m cluster build
	# Each process has a cluster of its own; one alone needs none beside it.
	$(BIN)/python -m pytest --numprocesses=$(if $(filter 1,$(E2E_PROCESSES)),0,$(E2E_PROCESSES)) --dist=loadfile $(PYTEST_FLAGS) tests/e2e

soak: setup  ## half an hour of random faults on the cluster of the tests; SOAK_FLAGS="--seed 7" repeats one
	@PYTHONPATH=tests/e2e:tests/support $(BIN)/python -m soak $(SOAK_FLAGS)

manifests: setup  ## manifests/ from the schemas and the chart, by the Helm of the test cluster (Go 1.26)
	@$(BIN)/python -m gradsieve_operator.schema manifests/crds
	PYTHONPATH=tests/e2e $(BIN)/python -m helm_chart

release: setup  ## wheel, sdist, chart, images' contexts, checksums and SBOM of the last commit, in dist (Go 1.26)
	@rm -rf dist
	PYTHONPATH=tests/e2e $(BIN)/python release

lint: setup  ## ruff, mypy --strict, import rules, Dockerfiles
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint $$(git ls-files '*Dockerfile')

format: setup  ## let ruff lay out the code
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

demo: setup  ## the main job: compressed against dense training, with plots in demo/
	@$(BIN)/gradsieve demo $(DEMO_FLAGS)

clean:  ## remove the environment and what tools left
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
