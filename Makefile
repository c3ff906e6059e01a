# Entry point for users and contributors: `make help` lists the targets.
.DEFAULT_GOAL := help
.PHONY: help demo test test-all unit lint golden baseline fuzz mutants faults pythons docs site image image-cpu image-gpu lock gpu-acceptance base venv engine lab bench pictures clean

VENV   ?= .venv
PYTHON ?= python3
IMAGE  ?=
BIN    := $(VENV)/bin
# Python images set this variable. With it, every program that a test starts compiles all of its modules again.
unexport PYTHONDONTWRITEBYTECODE
TOOLKIT := $(BIN)/toolkit

help:            ## list the targets
	@awk -F ' *## ' '/^[a-z-]+:.*## / { sub(/:.*/, "", $$1); printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: venv base  ## train a model on two practice hosts; install and build what is missing
	@sh scripts/demo.sh $(TOOLKIT)

test: venv base  ## run unit, integration and end-to-end tests, except tests marked rare
	@sh scripts/test.sh $(BIN)

test-all: venv base  ## run unit, integration and end-to-end tests, including tests marked rare
	@sh scripts/test.sh $(BIN) -m ''

unit: venv       ## run the unit tests, which need no Docker, in random order; SEED=N repeats an order
	@SEED=$(SEED) sh scripts/unit.sh $(BIN)

pythons:         ## run the unit tests with every installed Python from 3.10 to 3.13
	@sh scripts/pythons.sh

faults: venv     ## inject N faults into the practice cluster LAB; SEED, ONLY=FAULT/PHASE, AGAIN=CASE, LIST=1, REPORT=1
	@$(BIN)/python -m tests.faults -n $(or $(N),50) --seed $(or $(SEED),1) --lab $(or $(LAB),lab) \
		$(if $(ONLY),--only $(ONLY)) $(AGAIN:%=--again %) $(if $(LIST),--list) $(if $(REPORT),--report)

baseline: venv   ## print hashes of plans, golden files, references, schema and help, to compare before and after a refactoring
	@$(BIN)/python -m tests.baseline

fuzz: venv       ## test N random cases; KIND=files, lines, schedules, exports or answers (default: all), SEED, FIRST, JOBS
	@$(BIN)/python -m tests.fuzz -n $(or $(N),2000) --seed $(or $(SEED),1) --first $(or $(FIRST),0) \
		$(if $(KIND),--kind $(KIND)) $(if $(JOBS),--jobs $(JOBS))

mutants: venv    ## make N random source changes, and count the changes that unit tests detect; SEED, ONLY=FILE
	@$(BIN)/python scripts/mutants.py -n $(or $(N),60) --seed $(or $(SEED),1) $(if $(ONLY),--only $(ONLY))

lint: venv       ## run ruff, mypy and the prose check
	$(BIN)/ruff check toolkit tests bench scripts examples
	$(BIN)/ruff format --check toolkit tests bench scripts examples
	$(BIN)/mypy
	MYPYPATH=bench $(BIN)/mypy bench
	$(BIN)/mypy scripts/reference.py
	$(BIN)/mypy scripts/mutants.py
	$(BIN)/mypy scripts/site/hook.py
	$(BIN)/mypy examples/checkpoint.py
	$(BIN)/mypy scripts/prose.py
	$(BIN)/mypy -m scripts.sentences
	$(BIN)/mypy -m scripts.lock
	$(BIN)/mypy -p scripts.acceptance
	$(BIN)/python scripts/prose.py

golden: venv     ## rewrite the golden files; review the result with `git diff`
	TOOLKIT_GOLDEN=1 $(BIN)/pytest tests/unit -q

docs: venv       ## rewrite the generated pages of docs/reference from the code that they describe
	@$(BIN)/python scripts/reference.py

site: venv       ## build the documentation site in the folder site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

image: venv base ## build the image for your machine (GPU image if the machine has an NVIDIA GPU); IMAGE=cpu or IMAGE=gpu
	$(TOOLKIT) image build $(if $(IMAGE),--flavor $(IMAGE))

image-cpu: venv base ## build the image for hosts without GPUs
	$(TOOLKIT) image build --flavor cpu

image-gpu: venv base ## build the image for hosts with NVIDIA GPUs; needs no GPU
	$(TOOLKIT) image build --flavor gpu

lock: venv       ## download the wheels of all images, and write their SHA-256 to image/wheels.lock
	$(BIN)/python -m scripts.lock

gpu-acceptance:  ## test toolkit on the GPUs of your machine within 10 minutes; PYTHON=PATH with torch, ARGS=--help
	@PYTHON=$(PYTHON) sh scripts/gpu-acceptance.sh $(ARGS)

base: engine     ## pull the Debian base image; if the pull fails, create the image with debootstrap (as root)
	@sh image/base.sh

lab: engine venv ## start a practice cluster of two hosts on your machine
	$(TOOLKIT) lab up

bench: venv      ## run the benchmarks; each prints one table
	@for file in bench/bench_*.py; do $(BIN)/python $$file; done

engine:          ## as root, start a Docker engine if none answers; on Debian or Ubuntu, also install a missing engine
	@sh scripts/engine.sh ensure

venv: $(VENV)/.ready  ## create the virtual environment .venv with the versions of requirements.lock

$(VENV)/.ready: pyproject.toml requirements.lock scripts/venv.sh
	@sh scripts/venv.sh $(PYTHON) $(VENV)

pictures: venv   ## record docs/img and the output in README.md on practice hosts; needs Chromium
	@$(BIN)/python scripts/pictures/make.py

clean:           ## remove practice clusters, images, caches and .venv, and stop the engine that make started
	@sh scripts/clean.sh $(TOOLKIT)
