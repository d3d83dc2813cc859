# Two commands on a fresh machine: `make demo` and `make test`.

# The first of these that TensorFlow has packages for.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
	2>/dev/null && echo $$python && break; done)
VENV := .venv
OLDEST_VENV := .venv-oldest
OLDEST := tensorflow==2.20.0 keras==3.13.0
UPSTREAM_VENV := .venv-upstream
WHEEL_VENV := .venv-wheel
# Keras' tests come with Keras; some need jax, grain and orbax on any backend.
UPSTREAM := tensorflow==2.21.0 keras==3.15.1 jax \
	grain orbax-checkpoint pytest
UPSTREAM_TESTS := keras.src.callbacks keras.src.models \
	keras.src.trainers.trainer_test

# Two cores, and a third process while others wait for an allocator or for
# processes of theirs. In the order of folders, long tests are not left to last.
PYTEST_FLAGS := --numprocesses 3 --dist loadfile --no-loadscope-reorder

# Hides TensorFlow's information and warnings, and shows its errors.
export TF_CPP_MIN_LOG_LEVEL ?= 2
# Material for MkDocs announces its successor at each build.
export NO_MKDOCS_2_WARNING := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DELETE_ON_ERROR:
.PHONY: help demo bench docs test test-oldest test-upstream coverage dist
.PHONY: test-wheel lint format clean

help:
	@echo "make demo         train on real data, stock Keras against keras_tfopt"
	@echo "make bench        measure accumulation against stock Keras"
	@echo "make docs         build the documentation into site/"
	@echo "make test         lint, check types and run all tests"
	@echo "make test-oldest  run all tests with $(OLDEST)"
	@echo "make test-upstream run Keras' own tests with our classes"
	@echo "make coverage     run all tests, and say which lines they run"
	@echo "make dist         build sdist and wheel into dist/ and check them"
	@echo "make test-wheel   install the wheel alone, and time its import"
	@echo "make lint         ruff and mypy only"
	@echo "make format       let ruff rewrite what it can"
	@echo "make clean        remove environments and caches"

demo: $(VENV)/.demo
	$(VENV)/bin/keras-tfopt demo

bench: $(VENV)/.demo
	$(VENV)/bin/keras-tfopt bench

docs: $(VENV)/.test
	$(VENV)/bin/mkdocs build

test: lint
	$(VENV)/bin/pytest $(PYTEST_FLAGS)

test-oldest: $(OLDEST_VENV)/.test
	$(OLDEST_VENV)/bin/pytest $(PYTEST_FLAGS)

# Whole batches, and micro-batches of 1 and of 2 rows.
test-upstream: $(UPSTREAM_VENV)/.passing
	@for classes in whole 1 2; do \
		$(RUN_UPSTREAM) --classes=$$classes $(UPSTREAM_TESTS) || failed=1; \
	done; test -z "$$failed"

# COVERAGE_TESTS=tests/config measures a part of them.
coverage: $(VENV)/.coverage-extra
	$(VENV)/bin/pytest $(PYTEST_FLAGS) --cov --cov-report=term \
		--cov-report=html:build/coverage $(COVERAGE_TESTS)

dist: $(VENV)/.dist
	rm -rf dist
	$(VENV)/bin/python -m build
	$(VENV)/bin/twine check --strict dist/*

test-wheel: dist
	$(PYTHON) -m venv --clear $(WHEEL_VENV)
	$(WHEEL_VENV)/bin/python -m pip install --quiet dist/*.whl
	cd $(WHEEL_VENV) && bin/python ../tests/import_seconds.py

lint: $(VENV)/.test
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy

format: $(VENV)/.test
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

clean:
	rm -rf $(VENV) $(OLDEST_VENV) $(UPSTREAM_VENV) $(WHEEL_VENV) build dist
	rm -rf site .mypy_cache .pytest_cache .ruff_cache
	find keras_tfopt tests -name __pycache__ -prune -exec rm -rf {} +

# Stamps: an environment is set up again only when one of these changes.
INSTALLED := pyproject.toml keras_tfopt/_version.py

%/.created:
	@test -n "$(PYTHON)" || { \
		echo "No Python 3.11, 3.12 or 3.13 found; set PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $*
	@touch $@

$(VENV)/.demo: $(INSTALLED) | $(VENV)/.created
	@echo "Installing keras-tfopt[demo] into $(VENV) ..."
	@$(VENV)/bin/python -m pip install --quiet --editable ".[demo]"
	@touch $@

$(VENV)/.test: $(INSTALLED) | $(VENV)/.created
	@echo "Installing keras-tfopt[test] into $(VENV) ..."
	@$(VENV)/bin/python -m pip install --quiet --editable ".[test]"
	@touch $@

$(VENV)/.coverage-extra: $(VENV)/.test
	@$(VENV)/bin/python -m pip install --quiet --editable ".[coverage]"
	@touch $@

$(VENV)/.dist: $(INSTALLED) | $(VENV)/.created
	@$(VENV)/bin/python -m pip install --quiet "build>=1.2" "twine>=6.1"
	@touch $@

$(OLDEST_VENV)/.test: $(INSTALLED) | $(OLDEST_VENV)/.created
	@echo "Installing keras-tfopt[test] with $(OLDEST) into $(OLDEST_VENV) ..."
	@$(OLDEST_VENV)/bin/python -m pip install --quiet --editable ".[test]" $(OLDEST)
	@touch $@

$(UPSTREAM_VENV)/.test: $(INSTALLED) | $(UPSTREAM_VENV)/.created
	@echo "Installing keras-tfopt with $(UPSTREAM) into $(UPSTREAM_VENV) ..."
	@$(UPSTREAM_VENV)/bin/python -m pip install --quiet --editable . $(UPSTREAM)
	@touch $@

RUN_UPSTREAM := KERAS_BACKEND=tensorflow $(UPSTREAM_VENV)/bin/python -m pytest \
	-c tests/upstream/pytest.ini --passing=$(UPSTREAM_VENV)/.passing

# The tests that pass without us: what fails there is not ours to mend.
$(UPSTREAM_VENV)/.passing: $(UPSTREAM_VENV)/.test
	$(RUN_UPSTREAM) --classes=keras $(UPSTREAM_TESTS)
