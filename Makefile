# Bare `make` lists what can be made.
.DEFAULT_GOAL := help
UV := python3 -m uv

.PHONY: uv help demo test check coverage lint types interop bench stress soak fuzz matrix portable mutants dist docs audit lock

help: ## list what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / { sub(/:.*/, "", $$1); printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

uv:
	@python3 -m uv --version >/dev/null 2>&1 || python3 -m pip install -q uv

demo: uv ## see the main job done, in under a minute
	$(UV) run --no-dev harn demo

test: uv ## all ordinary tests, a real PostgreSQL included
	$(UV) run pytest

lint: uv ## ruff, both kinds
	$(UV) run ruff check src tests bench tools
	$(UV) run ruff format --check src tests bench tools

types: uv ## mypy --strict over src, tests, tools and bench; no public type unknown to pyright
	$(UV) run mypy
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(UV) run pyright
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(UV) run pyright --verifytypes harn --ignoreexternal

check: ## everything CI does: tests, lint, types, coverage, the demo
	bash .ci/run

coverage: uv ## branches that the whole suite takes, against a floor (FLOOR=90)
	bash .ci/coverage all

interop: uv ## other projects' own clients and servers against ours
	UV_PROJECT_ENVIRONMENT=.venv-interop $(UV) run --group interop pytest -n 0 tests/interop

bench: uv ## harn against its peers and the bare floor (ONLY=pools for one subject)
	$(UV) run python -m bench $(ONLY)

stress: uv ## long crash, soak and fuzz runs (HARN_STRESS=10 presses ten times as hard; ONLY=tests/crash)
	HARN_STRESS=$${HARN_STRESS:-10} $(UV) run pytest --timeout=3600 -n 0 $(ONLY)

soak: uv ## producers, consumers, kills and limits for an hour (MINUTES=60 ENGINES="sqlite postgres")
	$(UV) run python -m tools.soak --minutes $${MINUTES:-60} $${ENGINES:-sqlite postgres}

fuzz: uv ## odd bytes for each parser of what comes from outside (SECONDS=60 each)
	HARN_FUZZ_SECONDS=$(or $(SECONDS),60) $(UV) run pytest --timeout=7200 -n 2 -rP tests/fuzz/test_parsers_fuzz.py

matrix: uv ## the suite on every Python from 3.11 on that this machine has (ONLY=tests/pools)
	@for version in 3.11 3.12 3.13 3.14; do \
		found=$$(python3 -m tools.pythons $$version) || continue; \
		echo "Python $$version"; \
		UV_PROJECT_ENVIRONMENT=.venv-$$version $(UV) run --python $$found pytest $(ONLY) || exit 1; \
	done

portable: uv ## the rooms that use files, without what only Linux has (ONLY=tests/pools)
	PYTHONPATH=tests/portable $(UV) run pytest $${ONLY:-tests/storage tests/pools tests/ratelimit tests/ground/test_private_files.py}

mutants: uv ## hand-made faults, each caught by a test (ONLY=lease for some; WORKERS=2 LIMIT=180)
	$(UV) run python -m tools.mutants --workers $${WORKERS:-2} --limit $${LIMIT:-180} $(ONLY)

dist: uv ## wheel and sdist: reproducible, checked, tested from the sdist, installed on each Python (ONLY=tests)
	python3 -m tools.dist $(ONLY)

docs: uv ## make the generated pages again and build the site into site/
	$(UV) run python -m tools.api
	$(UV) run python -m tools.dashboard
	$(UV) run python -m tools.diagrams
	$(UV) run --group docs zensical build --strict

audit: uv ## published advisories against what was tested; needs the network
	$(UV) tool run pip-audit --strict --requirement requirements.lock --disable-pip

lock: uv ## pin what was tested, with hashes and no addresses
	$(UV) export -q --all-extras --group dev --no-emit-project --no-header -o requirements.lock
