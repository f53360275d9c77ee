# Everything happens in .venv, which `make setup` makes; nothing is installed anywhere else.
#
#   make demo      make test      make help

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh

# The first of these that is new enough and can make an environment; or say PYTHON=/path/to/python.
PYTHON ?= $(shell for each in python3 python3.13 python3.12 python3.11; do \
	$$each -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { command -v $$each; break; }; done)

# Written last by a set-up that went through; it holds the place of the checkout.
READY := .venv/ready
# Written first: with it there, .venv is half an environment, and is made again.
UNFINISHED := .venv/unfinished

# Those that Spark loads, for its starts in tests.
CLASSES := .venv/spark.jsa
ARCHIVE := tests/spark/class_archive.py

# As pip does where it installs for good: else, where PYTHONDONTWRITEBYTECODE is set, each start of
# each process compiles all of its modules, which takes longer than the rest of a start.
COMPILE := .venv/bin/python -m compileall -q -j 0 src/penstock src/penstock/*/

# An environment does not survive that its checkout is moved or that its Python goes.
ifneq ($(wildcard $(READY)),)
ifneq ($(shell cat $(READY)) $(shell .venv/bin/python -c 'print("runs")' 2>/dev/null),$(CURDIR) runs)
$(shell mv -f $(READY) $(UNFINISHED))
endif
endif

.PHONY: setup
setup: $(READY) ## make .venv and install Penstock with all extras into it

# what is compiled counts like what is configured: either changed, it is installed again
$(READY): pyproject.toml $(wildcard shared/loops/native/* maintenance/verify_loops/native/*)
	@test -n "$(PYTHON)" || { \
	  echo 'error: no Python 3.11 or later with its venv module was found on PATH.' >&2; \
	  echo '  Debian, Ubuntu: apt install python3 python3-venv' >&2; \
	  echo '  or name one:    make setup PYTHON=/path/to/python3' >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: Penstock needs Python 3.11 or later; $(PYTHON) is older" >&2; exit 1; }
	@"$(PYTHON)" -c 'import venv, ensurepip' || { \
	  echo "error: $(PYTHON) has no venv module; Debian, Ubuntu: apt install python3-venv" >&2; \
	  exit 1; }
	@if [ -e $(UNFINISHED) ]; then echo 'what is in .venv is unfinished or was moved; making it again'; \
	  rm -rf .venv; fi
	@mkdir -p .venv && rm -f $(READY) && touch $(UNFINISHED)
	@echo '1/3 making .venv with $(PYTHON)'
	@"$(PYTHON)" -m venv .venv
	@echo '2/3 installing Penstock, Spark and the tools into it: Spark alone is a download of 450 MB'
	@# pip draws its bars on a terminal; in a log its hundreds of lines would hide ours
	@if [ -t 1 ]; then quiet=; else quiet=--quiet; fi; \
	  .venv/bin/python -m pip install $$quiet --disable-pip-version-check \
	  --retries 10 --use-pep517 -e '.[spark,spark-connect,demo,dev]'
	@$(COMPILE)
	@.venv/bin/penstock version | sed 's/^/3\/3 /;2,$$s/^3\/3 /    /'
	@echo '$(CURDIR)' > $(UNFINISHED) && mv $(UNFINISHED) $(READY)
	@echo 'Ready. Next:  . .venv/bin/activate && penstock up --store ./store    or:  make demo'

.PHONY: test
test: setup ## check style and types, then run all tests, as many at once as there are cores
	@# types are checked by one core, while another makes what all tests start from
	@$(MAKE) --no-print-directory -j 2 lint warm
	@# tests/conftest.py says how many at once, and in what order
	.venv/bin/python -m pytest -n auto

# compiled modules and tests, and the classes of Spark
.PHONY: warm
warm: setup
	@$(COMPILE)
	@# its plugins, too, which pytest compiles in its own way; what cannot be collected will say so
	@env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -m pytest --collect-only -qq > /dev/null || true
	@test $(CLASSES) -nt $(READY) -a $(CLASSES) -nt $(ARCHIVE) || .venv/bin/python $(ARCHIVE) $(CLASSES)

# how long `make chaos` goes on: make chaos MINUTES=60
MINUTES ?= 10

.PHONY: chaos
chaos: setup ## break brokers: every seeded bug, every crash point, then all for MINUTES (10)
	PENSTOCK_CHAOS_CANARIES=all .venv/bin/python -m pytest tests/chaos/test_canaries.py \
	  --timeout 600 --durations 0 --durations-min 1
	.venv/bin/penstock chaos --faults points --hits 20 --rounds 1
	.venv/bin/penstock chaos --minutes $(MINUTES)

# for example N=300 SEED=7 ONLY=shared/formats NEAR=12
N ?= 30
.PHONY: mutants
mutants: setup ## put N (30) small bugs into copies of the code, and tell which no test finds
	.venv/bin/python tests/mutants --count $(N) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY)) \
	  $(if $(NEAR),--near $(NEAR)) $(if $(FROM),--from $(FROM)) $(if $(QUICK),--quick)

.PHONY: interop
interop: setup ## the same stores in a real RocketMQ and here; needs Java 17 and Maven
	@# four at once: most of the time a test waits for a broker to start, or for messages to be due
	.venv/bin/python -m pytest tests/interop -n 4 --timeout 900 --durations 0 --durations-min 1

.PHONY: clients-tables
clients-tables: setup ## write the tables of docs/clients.md by what RocketMQ's clients print
	PENSTOCK_WRITE_TABLES=1 .venv/bin/python -m pytest tests/interop/gateway --timeout 600

# for example TESTS=tests/shared/log ONLY=shared/log
TESTS ?= tests/shared tests/client tests/actors
.PHONY: coverage
coverage: setup ## run TESTS (shared, client, actors) and print what they do not cover, room by room
	rm -rf .coverage && mkdir .coverage
	@# these look at what a client imports, and would find the measuring
	.venv/bin/python -m coverage run -m pytest -q --timeout 900 $(TESTS) \
	  --deselect tests/client/test_imports.py
	.venv/bin/python -m coverage combine -q
	.venv/bin/python tests/coverage $(ONLY)

.PHONY: lint
lint: setup ## check style and types only
	.venv/bin/python -m ruff check .
	.venv/bin/python -m ruff format --check .
	.venv/bin/python -m mypy

.PHONY: demo
demo: setup ## a broker, a killed actor, and the same messages in Spark
	.venv/bin/penstock demo

.PHONY: bench
bench: setup ## measure on this machine how fast one client sends
	.venv/bin/penstock bench produce

# for `make bench-peers`: for example PEERS='--only redis,nats --runs 1 --seconds 1'
PEERS ?=

.PHONY: bench-peers
bench-peers: setup ## measure Penstock beside other brokers for 40 minutes, write docs/performance.md
	.venv/bin/python -m penstock.bench.peers.compare $(PEERS)

.PHONY: tutorial
tutorial: setup ## run docs/tutorial.md in an empty environment, with a stopwatch
	.venv/bin/python tests/tutorial/run.py

.PHONY: site
site: setup ## build the documents as a site into build/site
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict --quiet
	@echo 'build/site/index.html'

.PHONY: screenshots
screenshots: setup ## take the pictures of the monitor's page in docs/ again; needs Chromium
	.venv/bin/python tests/actors/monitor/pictures.py

.PHONY: wheel
wheel: setup ## build the wheel for this machine and the source distribution into dist/
	rm -rf build/wheel
	.venv/bin/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheel .
	mkdir -p dist
	if [ -e build/wheel/*-any.whl ]; then cp build/wheel/*.whl dist; else PATH="$$PWD/.venv/bin:$$PATH" \
	  .venv/bin/python -m auditwheel repair --wheel-dir dist build/wheel/*.whl; fi
	.venv/bin/python -c 'from setuptools.build_meta import build_sdist; build_sdist("dist")' > dist/log
	@rm dist/log && ls -l dist

.PHONY: clean
clean: ## remove .venv and everything else that was made here
	rm -rf .venv .coverage build dist src/*.egg-info shared/loops/*.so maintenance/verify_loops/*.so .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' $(MAKEFILE_LIST) | expand -t 18
