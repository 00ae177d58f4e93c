# The two commands of the README are `make up` and `make test`; each does all of its own set-up.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: up test unit integration e2e check docs clean

up: $(VENV)/.up
	$(BIN)/muster up $(ARGS)

test: unit integration e2e

unit: $(VENV)/.test
	$(BIN)/python -m pytest tests/unit $(ARGS)

integration: $(VENV)/.test
	$(BIN)/python -m pytest tests/integration $(ARGS)

e2e: $(VENV)/.test
	$(BIN)/python -m pytest tests/e2e $(ARGS)

check: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy .
	$(BIN)/lint-imports
	$(BIN)/muster docs --check

docs: $(VENV)/.test
	$(BIN)/muster docs --write

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info[:2] <= (3, 13); sys.exit(0 if ok else f"passmuster needs Python 3.11 to 3.13; {sys.executable} is {sys.version.split()[0]}. Name another with: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

# The stamps depend on what decides an install, so that a changed pin is taken at the next command.
$(VENV)/.up: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install --quiet -c constraints.txt -e '.[all]'
	touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install --quiet -c constraints.txt -e '.[all,test]'
	touch $@ $(VENV)/.up
