# PYTHON=... names the interpreter that the virtual environment is made from.
# ARGS=... goes to pytest: make test ARGS="tests/test_imports.py -x"
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
CODE = $(wildcard src tests bench examples)
BENCHES ?= spawn grade soak kill

.DELETE_ON_ERROR:
.PHONY: demo test lint format docs bench clean

demo: $(VENV)/demo.stamp
	@$(PY) examples/demo.py

test: $(VENV)/test.stamp
	@$(PY) -m pytest $(ARGS)

lint: $(VENV)/dev.stamp
	$(PY) -m ruff check $(CODE)
	$(PY) -m ruff format --check $(CODE)
	$(PY) -m mypy $(CODE)
	$(PY) -m pyright

format: $(VENV)/dev.stamp
	$(PY) -m ruff check --fix $(CODE)
	$(PY) -m ruff format $(CODE)

docs: $(VENV)/demo.stamp
	$(PY) -m crucible._kernel.seccomp > docs/seccomp.md.new
	mv docs/seccomp.md.new docs/seccomp.md

bench: $(VENV)/test.stamp
	@set -e; for name in $(BENCHES); do echo "== bench/$$name.py"; $(PY) bench/$$name.py; done

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(PY):
	@scripts/system.sh "$(PYTHON)"
	"$(PYTHON)" -m venv $(VENV)

# One stamp per set of packages, so that a repeated run installs nothing until pyproject.toml changes.
$(VENV)/demo.stamp: EXTRAS = cli,trio,uvloop
$(VENV)/test.stamp: EXTRAS = test
$(VENV)/dev.stamp: EXTRAS = dev
$(VENV)/%.stamp: pyproject.toml | $(PY)
	$(PY) -m pip install --quiet --editable '.[$(EXTRAS)]'
	@touch $@
