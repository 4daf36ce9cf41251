# Every target sets itself up; a second run of setup does nothing.
PYTHON ?= python3
BIN := .venv/bin
OUT ?= out
DEMO := $(OUT)/demo
PROPERTIES := quick
WORKERS := $(shell echo $$(( $$(nproc) < 4 ? 2 * $$(nproc) + 1 : 8 )))  # more than cores: half of the time tests wait for processes
unexport PYTHONDONTWRITEBYTECODE  # else every server and worker compiles what the one before it did

TOOLS := .venv-tools
RAY := .venv-ray
PAGES := $(OUT)/pages

.PHONY: help setup demo how-long test lint check every-test soak versions bench ray golden lock docs manifests

help: ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: ## create .venv with Headway and vLLM's CPU build, from the lock
	@$(PYTHON) bootstrap.py

demo: how-long setup ## vllm and headway on real vLLM at 0.9 of this machine's capacity: which did better, and a page of plots
	@rm -rf $(DEMO)
	$(BIN)/headway bench --model demo --trace demo --load 0.9 --policies vllm,headway --out $(DEMO) -- \
		--max-num-seqs 16 --max-num-batched-tokens 1024
	$(BIN)/headway report $(DEMO) --out $(DEMO)/report.html

how-long:
	@echo "two policies, one after the other: three to four minutes on two cores, and the first time two more for set-up"

test: setup ## the fast tests, on every core: no server, no model
	$(BIN)/pytest -m "not engine and not slow" --numprocesses $(WORKERS) --dist worksteal

lint: setup ## style, import rules, sizes, prose, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(if $(filter quick,$(PROPERTIES)),$(BIN)/pytest tests/test_house.py tests/test_documents.py tests/test_prose.py)
	$(BIN)/mypy

check: PROPERTIES := full
check: every-test lint ## everything CI runs: lint, the fast tests, the real engine's

# One run, a file at a time: parts one after the other collect twice, and leave a core idle at the end of each.
# Bound as vLLM binds them by default, all servers of the tests would share the first core.
every-test: setup
	VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 $(BIN)/pytest -m "not long" --hypothesis-profile $(PROPERTIES) \
		--numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

soak: setup ## the long tests of the real engine: instances killed and frozen, soaks, the demo model
	$(BIN)/pytest -m long

versions: setup ## every tested vLLM, without a model: presets x features, parity, conformance, tests; the README's table
	$(BIN)/python bench/right/versions.py --readme

bench: setup ## every figure of our own
	$(BIN)/python bench/right/parity.py --json
	$(BIN)/python bench/right/conformance.py --json
	$(BIN)/python bench/simulator/gpu_step_times.py --json
	$(BIN)/python bench/simulator/e2e_runs.py --json
	$(BIN)/python bench/cost/sim_speed.py --json
	$(BIN)/python bench/simulator/fidelity.py --out $(OUT)/fidelity --json
	$(BIN)/python bench/simulator/fidelity.py --swaps --out $(OUT)/fidelity-swaps --json
	$(BIN)/python bench/gain/swap.py --json
	$(BIN)/python bench/gain/fastserve_real.py --out $(OUT)/fastserve-real --json
	$(BIN)/python bench/cost/plan_overhead.py --json
	$(BIN)/python bench/cost/engine_overhead.py --json
	$(BIN)/python bench/cost/length.py --json
	$(BIN)/python bench/simulator/fidelity.py --targets --out $(OUT)/fidelity-targets --json
	$(BIN)/python bench/cost/gateway_overhead.py --json
	$(BIN)/python bench/gain/batch_beside.py --out $(OUT)/batch-beside --json
	$(BIN)/python bench/gain/batch_simulated.py --json
	$(BIN)/python bench/right/gateway_storm.py --json
	$(BIN)/python bench/right/gateway_storm.py --hostile --json
	$(BIN)/python bench/right/resume.py --json
	$(BIN)/python bench/gain/regret.py --race --json
	$(BIN)/python bench/gain/headway_real.py --out $(OUT)/headway-real --json
	$(BIN)/python bench/gain/headway_real.py --out $(OUT)/headway-real --broken --json
	$(BIN)/python bench/gain/routers.py --json
	$(BIN)/python bench/gain/scaling.py --out $(OUT)/scaling --json
	$(BIN)/python bench/gain/kv_tier.py --json
	$(BIN)/python bench/gain/routers_real.py --out $(OUT)/routers-real --json
	$(BIN)/python bench/gain/agents_real.py --out $(OUT)/agents-real --json
	$(BIN)/python bench/gain/broken_predictions.py --json
	$(BIN)/python bench/gain/tenants.py --json
	$(BIN)/python bench/gain/long_prompt.py --out $(OUT)/long-prompt --json
	$(BIN)/python bench/gain/planner.py --json
	$(BIN)/python bench/cost/explain_overhead.py --json
	$(BIN)/python bench/right/outputs.py --json
	$(BIN)/python bench/right/soak.py --json

ray: setup $(RAY)/ready ## two replicas on Ray Serve, then behind the gateway, one killed under load: ten minutes
	PYTHONPATH=$(CURDIR)/$(RAY):$(CURDIR)/deploy/ray $(BIN)/python bench/right/ray_serve.py --json

# A folder of packages beside .venv, since Ray Serve runs in the environment of the engine.
$(RAY)/ready: requirements/ray.lock
	@rm -rf $(RAY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --target $(RAY) --requirement $<
	@touch $@

golden: setup ## rewrite the stored results; review the diff
	$(BIN)/pytest tests/golden --rewrite-golden

docs: $(TOOLS)/ready ## the pages as a site, in out/site; a broken link or anchor is an error
	@rm -rf $(PAGES) && mkdir -p $(PAGES)/bench $(PAGES)/deploy
	@ln -s $(CURDIR)/*.md $(CURDIR)/docs $(CURDIR)/adr $(PAGES)
	@ln -s $(CURDIR)/bench/README.md $(PAGES)/bench && ln -s $(CURDIR)/deploy/README.md $(PAGES)/deploy
	NO_MKDOCS_2_WARNING=1 $(TOOLS)/bin/mkdocs build --strict --quiet --config-file mkdocs.yml

manifests: $(TOOLS)/ready ## workflows, compose and Kubernetes files against their schemas
	$(TOOLS)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(TOOLS)/bin/check-jsonschema --builtin-schema vendor.compose-spec deploy/compose/compose.yaml
	$(TOOLS)/bin/kubernetes-validate --strict --quiet deploy/kubernetes/headway/engines.yaml deploy/kubernetes/headway/gateway.yaml
	@mkdir -p $(OUT)
	@if command -v kubectl > /dev/null; then kubectl kustomize deploy/kubernetes/headway > $(OUT)/kubernetes.yaml \
		&& $(TOOLS)/bin/kubernetes-validate --strict --quiet $(OUT)/kubernetes.yaml; fi

# An environment of its own: what serves and tests is set up sooner without.
$(TOOLS)/ready: requirements/tools.lock
	@$(PYTHON) -m venv --clear $(TOOLS)
	@$(TOOLS)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-compile --requirement $<
	@touch $@

lock: ## for maintainers: resolve the locks anew (needs uv)
	UV_FIND_LINKS="$$($(PYTHON) -m pip config get global.find-links)" uv pip compile pyproject.toml \
		--extra cpu --extra serve --extra fit --extra dev \
		--python-version 3.11 --no-header --no-annotate --no-emit-find-links --no-emit-index-url -o requirements/cpu.lock
	UV_FIND_LINKS="$$($(PYTHON) -m pip config get global.find-links)" uv pip compile --group tools \
		--python-version 3.11 --no-header --no-annotate --no-emit-find-links --no-emit-index-url -o requirements/tools.lock
	UV_FIND_LINKS="$$($(PYTHON) -m pip config get global.find-links)" uv pip compile --group ray \
		--constraint requirements/cpu.lock --python-version 3.11 --no-header --no-annotate --no-emit-find-links \
		--no-emit-index-url | grep --line-regexp --fixed-strings --invert-match --file requirements/cpu.lock > requirements/ray.lock
