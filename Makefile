# The one front door. `make help` lists what is behind it.
.DEFAULT_GOAL := help
.PHONY: help demo test test-all unit lint golden baseline fuzz mutants faults pythons docs site image image-cpu image-gpu base venv engine lab bench pictures clean

VENV   ?= .venv
PYTHON ?= python3
IMAGE  ?=
BIN    := $(VENV)/bin
# Images of Python set it. With it, every program that a test starts compiles all of its modules again.
unexport PYTHONDONTWRITEBYTECODE
TOOLKIT := $(BIN)/toolkit

help:            ## this list
	@awk -F ' *## ' '/^[a-z-]+:.*## / { sub(/:.*/, "", $$1); printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: venv base  ## from nothing to a training run across two practice hosts
	@sh scripts/demo.sh $(TOOLKIT)

test: venv base  ## unit, integration and end-to-end tests; sets up what they need
	@sh scripts/test.sh $(BIN)

test-all: venv base  ## the same and the rare ones: long, about what seldom changes
	@sh scripts/test.sh $(BIN) -m ''

unit: venv       ## tests that need no Docker, in random order; SEED repeats an order
	@SEED=$(SEED) sh scripts/unit.sh $(BIN)

pythons:         ## the unit tests on every Python from 3.10 on that this machine has
	@sh scripts/pythons.sh

faults: venv     ## faults in all phases on the practice cluster LAB, N in all; SEED, ONLY=FAULT/PHASE, AGAIN=CASE, LIST=1, REPORT=1
	@$(BIN)/python -m tests.faults -n $(or $(N),50) --seed $(or $(SEED),1) --lab $(or $(LAB),lab) \
		$(if $(ONLY),--only $(ONLY)) $(AGAIN:%=--again %) $(if $(LIST),--list) $(if $(REPORT),--report)

baseline: venv   ## hashes of plans, golden files, references, schema and help, to compare before and after a change
	@$(BIN)/python -m tests.baseline

fuzz: venv       ## random hosts files, command lines, job schedules and answers of hosts, N of each; SEED, FIRST, KIND=files, lines, schedules or answers, JOBS
	@$(BIN)/python -m tests.fuzz -n $(or $(N),2000) --seed $(or $(SEED),1) --first $(or $(FIRST),0) \
		$(if $(KIND),--kind $(KIND)) $(if $(JOBS),--jobs $(JOBS))

mutants: venv    ## N random changes of the modules that act, and how many unit tests notice; SEED, ONLY=FILE
	@$(BIN)/python scripts/mutants.py -n $(or $(N),60) --seed $(or $(SEED),1) $(if $(ONLY),--only $(ONLY))

lint: venv       ## ruff and mypy
	$(BIN)/ruff check toolkit tests bench scripts examples
	$(BIN)/ruff format --check toolkit tests bench scripts examples
	$(BIN)/mypy
	$(BIN)/mypy scripts/reference.py
	$(BIN)/mypy scripts/mutants.py
	$(BIN)/mypy scripts/site/hook.py
	$(BIN)/mypy examples/checkpoint.py

golden: venv     ## rewrite all golden files, then look at `git diff`
	TOOLKIT_GOLDEN=1 $(BIN)/pytest tests/unit -q

docs: venv       ## rewrite docs/reference and cli/explained.py from the code that they describe
	@$(BIN)/python scripts/reference.py

site: venv       ## the documentation as a site, into site/; open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

image: venv base ## the image that this machine needs; IMAGE=cpu or IMAGE=gpu to choose
	$(TOOLKIT) image build $(if $(IMAGE),--flavor $(IMAGE))

image-cpu: venv base ## the image for hosts without GPUs
	$(TOOLKIT) image build --flavor cpu

image-gpu: venv base ## the image for hosts with NVIDIA GPUs; builds on any machine
	$(TOOLKIT) image build --flavor gpu

base: engine     ## the base image, made here when no registry can be reached
	@sh image/base.sh

lab: engine venv ## a practice cluster of two hosts on this machine
	$(TOOLKIT) lab up

bench: venv      ## the benchmarks; each prints one table
	@for file in bench/bench_*.py; do $(BIN)/python $$file; done

engine:
	@sh scripts/engine.sh ensure

venv: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml requirements.lock scripts/venv.sh
	@sh scripts/venv.sh $(PYTHON) $(VENV)

pictures: venv   ## docs/img anew, from a real run on practice hosts; needs Chromium
	@$(BIN)/python scripts/pictures/make.py

clean:           ## remove what the project made on this machine: labs, images, caches, an engine it started
	@sh scripts/clean.sh $(TOOLKIT)
