# Every target works from a fresh clone, without root, with nothing but Python >= 3.11 and make.
# The environment is made anew when what it is made from changes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Twice quiet: pip warns of every folder of its configuration that lacks a package.
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet
LIBRARY := $(VENV)/.made
# A stamp for each dependency group of pyproject.toml that has been installed.
WITH_TESTS := $(VENV)/.test-installed
WITH_INTEROP := $(VENV)/.interop-installed
WITH_DOCS := $(VENV)/.docs-installed
WITH_LINT := $(VENV)/.lint-installed
# On all processors; `make test PYTEST_ARGS='-p no:xdist'` takes one. A test that hangs ends its process, and
# the run with it.
ON_ALL_PROCESSORS := -n auto --dist loadfile --max-worker-restart 0
PYTEST = $(BIN)/python -m pytest $(if $(findstring no:xdist,$(PYTEST_ARGS)),,$(ON_ALL_PROCESSORS))

# The last Azurite for the Node.js of Debian 12; later ones want 21.
AZURITE_VERSION := 3.35.0
AZURITE := .servers/azurite-$(AZURITE_VERSION)

# The tests start hundreds of processes, and each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-integration test-slow lint docs dist bench bench-against servers peers clean
.DELETE_ON_ERROR:

demo: $(LIBRARY)
	@echo "running examples/quickstart.py"
	@$(BIN)/python examples/quickstart.py

test: $(WITH_TESTS)
	$(PYTEST) $(PYTEST_ARGS)

# With other libraries, whole programs, a browser and real servers; those that are not installed are skipped.
test-integration: $(WITH_TESTS) $(WITH_INTEROP) $(WITH_DOCS)
	$(PYTEST) -m '(interop or programs or browser or servers) and not (slow or gpu)' $(PYTEST_ARGS)

test-slow: $(WITH_TESTS) $(WITH_INTEROP) $(WITH_LINT)
	$(BIN)/python -m pytest -m '(slow or hypothesis) and not gpu' $(PYTEST_ARGS)

lint: $(WITH_TESTS) $(WITH_INTEROP) $(WITH_DOCS) $(WITH_LINT)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.13

# Of docs/ and README.md, with every warning as an error; to be read with `python -m http.server -d build/site`.
docs: $(WITH_DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --config-file docs/site/mkdocs.yml
	@echo "build/site"

# The wheel and the sdist; `make test-slow PYTEST_ARGS=tests/distribution` installs them and tests that.
dist: $(LIBRARY)
	$(BIN)/python -m hatchling build --directory dist

# Needs nginx, and takes half an hour on a machine with nothing else to do; writes what docs/benchmarks.md keeps.
bench: $(WITH_TESTS)
	$(BIN)/python tests/benchmarks/against_peers.py --write docs

# In pairs with an older revision: `make bench-against REV=v0.1`; nothing else may be running.
bench-against: $(WITH_TESTS)
	$(BIN)/python tests/benchmarks/against_revision.py $(REV) $(BENCH_ARGS)

# The one server of the tests that is no package of Debian or of Python.
servers: $(AZURITE)

# The libraries that docs/coming-from compares programs with; some want other versions of what we have. They
# go on top of the environment that there is: an older one is not made anew, since others may be using it.
peers: $(if $(wildcard $(LIBRARY)),,$(LIBRARY))
	$(BIN)/python tests/benchmarks/peers/environment.py

clean:
	rm -rf $(VENV) build dist .servers .peers .mypy_cache .pytest_cache .ruff_cache .hypothesis

# The pinned pip first: a new environment's own may be too old to know dependency groups. What builds the
# package is installed and pinned too, instead of being fetched at whatever version is newest.
$(LIBRARY): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "asyncloader needs Python >= 3.11; name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "making the environment $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PIP) install --upgrade -c constraints.txt pip
	@$(PIP) install -c constraints.txt hatchling editables
	@echo "installing asyncloader and what it needs; torch is large, this takes a minute or more"
	@$(PIP) install -c constraints.txt --no-build-isolation -e .
	@touch $@

$(VENV)/.%-installed: $(LIBRARY)
	$(PIP) install -c constraints.txt --group $*
	@touch $@

# Scripts of packages are not run: none that is needed has any.
$(AZURITE):
	npm install --prefix .servers --no-save --no-package-lock --no-audit --no-fund --ignore-scripts \
		--loglevel=error azurite@$(AZURITE_VERSION)
	touch $@
