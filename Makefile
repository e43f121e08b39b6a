# The tasks of this repository. `make help` lists them, CI runs `make test` and `make cluster`.
# They need Go, git, make and, for mounts and containers, root.

SHELL := /bin/bash -eu -o pipefail
.DEFAULT_GOAL := build

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X github.com/ballast-dev/ballast/cmd/internal/contract/wire.version=$(VERSION)

# All is built in one way, that of a release, but for the race detector, runc and fuzzing: what is built in two ways is compiled
# twice. Tests are not vetted again, with their dependencies and for each way: "make check" does it once, with all analyzers.
export CGO_ENABLED := 0
export GOFLAGS := -trimpath -vet=off $(GOFLAGS)

# The race detector is slow on two cores, so it is used where goroutines share state.
RACE := ./store/... ./snapshotter/lazy/... ./convert/pullsecret/... ./convert/registry/... ./convert/remote/...

# Tests in RACE without goroutines that share state, which take minutes with the race detector, and one of callers that share a token:
# containerd's authorizer reads the time of its expiry while the request for it writes that.
NORACE := TestTokenOfEndedCaller|TestCrashPoints|TestDamageMatrix|TestDecompressionBombEnds|TestZerosInArchives|TestArchivesShareQuota|TestDamagedIsRebuilt|TestDamagedState|TestIndexFollowsRecords|TestStagedDamage|TestModelPresence|TestHostileHeads|TestManyHardLinks|TestChunksShareBlocks|TestChunksAreShared

# For fuzz: a pattern of targets (default: all). T is the time for each, or for soak.
F ?= .
T ?= 20s

# For sequences: how many, and the first seed.
N ?= 1000
S ?= 1

# For e2e and kubelet: the tests to run, as for go test -run. Recipes use $(value RUN), because make would expand "$|".
RUN ?= .

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9%-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/ballast, bin/ballastd and bin/ballast-keyless (the default)
	go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/ballast ./cmd/ballastd ./cmd/ballast-keyless

.PHONY: fleet
fleet: ## Build bin/ballast-fleet, the program for Kubernetes
	cd cmd/ballast-fleet && go build -ldflags '$(LDFLAGS)' -o ../../bin/ .

.PHONY: crds
crds: ## Write the definitions of the chart and the generated code from cmd/ballast-fleet/v1alpha1
	cd cmd/ballast-fleet && go tool controller-gen object crd paths=./v1alpha1 output:crd:dir=../../contrib/helm/ballast/files

.PHONY: image
image: ## Build the container image for amd64 and arm64: bin/image (an OCI layout) and bin/image.tar
	cd contrib/release && go run . -o ../../bin -only image -version '$(VERSION)'

.PHONY: demo-image
demo-image: ## Build the container image of the demo for this machine's architecture: bin/demo (an OCI layout) and bin/demo.tar
	@test/install.sh musl-tools
	cd contrib/release && go run . -o ../../bin -only demo -version '$(VERSION)'

# The file of the key that signs a release. Its password is in the variable COSIGN_PASSWORD.
COSIGN_KEY ?=

.PHONY: release
release: ## Build all files of a release: bin/release. VERSION=v0.1.0 (default: the tag, or the version of the chart); COSIGN_KEY=FILE signs it
	@test/install.sh musl-tools
	@rm -rf bin/release; mkdir -p bin
	cd contrib/release && go run . -o ../../bin/release -version '$(if $(filter v%,$(VERSION)),$(VERSION),v$(shell sed -n 's/^version: //p' contrib/helm/ballast/Chart.yaml))' -key '$(if $(COSIGN_KEY),$(abspath $(COSIGN_KEY)))'

.PHONY: test-images
test-images: # The files for tests: two versions of the image, the package, the chart rendered, a kubelet
	@test/kubernetes/build.sh
	@rm -rf bin/test/packages
	@cd contrib/release && go run . -o ../../bin/test/one -only image -version v0.1.0-one
	@cd contrib/release && go run . -o ../../bin/test/two -only image -version v0.1.0-two -arch amd64
	@cd contrib/release && go run . -o ../../bin/test/packages -only deb -version v0.1.0 -arch "$$(go env GOARCH)"
	cd test/chart && go build -o ../../bin/test/render ./render
	cd test && go build -o ../bin/test/llama-server ./llama

.PHONY: chart
chart: ## Write contrib/kustomize from the Helm chart
	cd test/chart && go test -count=1 -run TestKustomizeBases . -update

.PHONY: docs
docs: ## Write contrib/docs/commands.md, configuration.md and json.md from the code
	go test -count=1 -run 'TestManual|TestReference|TestJSON' ./cmd/ballast ./cmd/ballastd ./cmd/internal/contract/config -update

.PHONY: man
man: ## Write the man pages: bin/man/ballast.8 and ballastd.8
	@mkdir -p bin/man
	go test -count=1 -run TestManual -ldflags '$(LDFLAGS)' ./cmd/ballast ./cmd/ballastd -man '$(CURDIR)/bin/man'

.PHONY: tools
tools: ## Install busybox, build containerd, ctr, the shim and runc for tests
	@test/install.sh
	@test/tools.sh

.PHONY: tools-all
tools-all: tools ## The same for each supported version of containerd
	@test/tools.sh --all

.PHONY: check
check: ## gofmt, go vet, staticcheck, import policy
	@files=$$(gofmt -l cmd contrib convert snapshotter store test); \
	if [ -n "$$files" ]; then echo "gofmt -w is needed:"; echo "$$files"; exit 1; fi
	cd test && go build -o ../.cache/staticcheck honnef.co/go/tools/cmd/staticcheck
	@for m in $$(git ls-files go.mod '*/go.mod' | xargs -n 1 dirname); do \
		cd "$(CURDIR)/$$m"; packages=$$(go list ./...); [ -n "$$packages" ] || continue; \
		echo "$$m: go vet, staticcheck"; go vet ./...; "$(CURDIR)/.cache/staticcheck" ./...; \
	done
	cd test && go vet -tags containers_image_openpgp ./mirror && go vet -tags vm ./vm && ../.cache/staticcheck -tags vm ./vm
	cd cmd/ballast-fleet && go test -count=1 ./... # its test reads comments, which are not in what the test cache looks at
	cd test && go test -count=1 . ./bench ./ballast-demo # they read files of another module, which the test cache does not track
	cd test/chart && go test -count=1 ./... # so do these

# What is run after test, such as "cluster".
NEXT ?=

# Tests wait a lot. In the time that they leave, what later stages and NEXT need is built, and parsers are fuzzed; a stage that needs
# what is built earlier waits for it.
.PHONY: test
test: ## All tests that CI runs, but for cluster
	@test/install.sh; mkdir -p .cache
	@set -m; nice -n 19 $(MAKE) --no-print-directory prebuild >.cache/prebuild.log 2>&1 & prebuild=$$!; fuzz=; set +m; \
	trap 'kill -- -$$prebuild $${fuzz:+-$$fuzz} 2>/dev/null || true' EXIT; \
	$(MAKE) --no-print-directory check test-unit; \
	set -m; nice -n 10 $(MAKE) --no-print-directory test-fuzz >.cache/fuzz.log 2>&1 & fuzz=$$!; set +m; \
	$(MAKE) --no-print-directory e2e kubelet; \
	wait $$fuzz || { cat .cache/fuzz.log; exit 1; }; grep -c ^== .cache/fuzz.log | sed 's/$$/ fuzz targets passed/'

.PHONY: prebuild
prebuild:
	@test/tools.sh
	@test/tools.sh --all
	@test/kubernetes/build.sh
	@GOARCH=arm64 go list -export -deps ./cmd/ballast ./cmd/ballastd ./cmd/ballast-keyless # for test-images, which links them
	@cd cmd/ballast-fleet && GOARCH=arm64 go list -export -deps .
	@$(if $(filter cluster,$(NEXT)),test/kubernetes/build.sh --all)

.PHONY: test-unit
test-unit: tools ## Tests of packages, with the race detector where it matters
	CGO_ENABLED=1 test/disk.sh go test -p 4 -race -timeout 1h -skip '^($(NORACE))$$' $(RACE)
	test/disk.sh go test -p 4 -timeout 1h $$(go list ./... | grep -vxF "$$(go list $(RACE))")
	test/disk.sh go test -p 4 -timeout 1h -run '^($(NORACE))$$' \
		$$(go list -f '{{.Dir}}' $(RACE) | xargs grep -slE --include='*_test.go' -d recurse '^func ($(NORACE))\(' | xargs -n 1 dirname | sort -u)
	cd contrib/release && go test -timeout 1h ./...
	cd test && go test -timeout 1h -tags containers_image_openpgp ./mirror

.PHONY: test-fuzz
test-fuzz: ## About a minute of fuzzing; counts runs, not seconds, so that a busy machine fuzzes as much
	@test/fuzz.sh 1000x

.PHONY: e2e
e2e: build tools-all test-images ## Tests with a real containerd; RUN=TestX for one, BALLAST_KEEP=1 keeps its files
	cd test && ./disk.sh go test -count=1 -timeout 1h -parallel 6 -run '$(value RUN)' ./e2e/...

.PHONY: kubelet
kubelet: build tools ## Tests of pods with a real kubelet, which is built first; RUN and BALLAST_KEEP as for e2e
	@test/kubernetes/build.sh
	cd test && ./disk.sh go test -count=1 -timeout 1h -parallel 4 -run '$(value RUN)' ./kubelet

.PHONY: cluster
cluster: build fleet tools test-images ## Tests with a real control plane, which is built first; RUN and BALLAST_KEEP as for e2e
	@test/kubernetes/build.sh --all
	@test/install.sh chromium containernetworking-plugins
	cd test && ./disk.sh go test -count=1 -timeout 1h -parallel 4 -run '$(value RUN)' ./cluster

.PHONY: vm
vm: build tools demo-image ## Tests with a whole machine in QEMU, Debian 12 with Linux 6.1 and 6.12, which is made first
	@test/kubernetes/build.sh
	@test/vm/build.sh
	cd test && go test -tags vm -count=1 -timeout 3h -run '^TestDebian12$$' ./vm -images ../../.cache/vm

.PHONY: vm-all
vm-all: build tools-all demo-image ## The same with Debian 13, SELinux, a cluster, arm64, older versions of containerd and twelve power cuts; RUN for one
	@test/kubernetes/build.sh
	@test/vm/build.sh --all
	cd test && go test -tags vm -count=1 -timeout 12h -run '$(value RUN)' ./vm -images ../../.cache/vm -cuts 12

.PHONY: clients
clients: build tools demo-image ## Tests with other clients, which are built or installed first; RUN=TestX for one
	@test/install.sh skopeo podman buildah
	@nice test/clients.sh
	cd test && go build -o ../bin/test/llama-server ./llama
	cd test && go test -count=1 -timeout 1h -run '$(value RUN)' ./clients

.PHONY: demo
demo: build tools ## Pull models with ctr, read and hash them in a container, show the disk use
	cd test && go build -o ../.cache/ ./ballast-demo && exec ../.cache/ballast-demo

.PHONY: dev
dev: build tools ## The same environment, left running until Ctrl-C
	cd test && go build -o ../.cache/ ./ballast-demo && exec ../.cache/ballast-demo -dev

.PHONY: fuzz
fuzz: ## Fuzz the parsers; F=FuzzX for one, T=10m for the time of each, T=1000x for the number of runs
	@test/fuzz.sh '$(T)' '$(value F)'

.PHONY: crash
crash: ## Kill the store at every call that changes the disk, and check it afterwards
	go test -count=1 -v -timeout 1h -run TestCrashPoints ./store -crash-points 0

.PHONY: sequences
sequences: ## Random set-ups, edits by others, crashes, repairs and removals on generated nodes; N=1000, S=1 is the first seed
	go test -count=1 -timeout 24h -run TestSequences ./cmd/internal/installer/setup -sequences $(N) -seed $(S)

# Flags of mutants, such as "-run '^19 '"; "make mutants MUTANTS=-h" lists all.
MUTANTS ?=

.PHONY: mutants
mutants: tools-all ## Break each promise of contrib/docs/security.md in the code, and check that its test fails; MUTANTS for flags
	cd test && go build -o ../.cache/mutants ./mutants && exec ./disk.sh ../.cache/mutants $(MUTANTS)

.PHONY: soak
soak: ## Random operations on a store, with kills, a full disk and bad registries; T=1h is the duration
	CGO_ENABLED=1 go test -race -count=1 -v -timeout 24h -run TestSoak ./store -soak $(T)

# Flags of bench, such as '-size 1GiB -rounds 3'; "make bench BENCH=-h" lists all.
BENCH ?=

# It replaces the shell, so that it gets the signals: it prints what it has, and ends.
RUN_BENCH = go build -o ../.cache/bench ./bench && exec ../.cache/bench

.PHONY: bench
bench: build tools ## Measure ballast against its limits and stock containerd, print each table in Markdown when it is made; BENCH for flags
	cd test && $(RUN_BENCH) $(BENCH)

# The commit with which bench-guard compares.
BASE ?= HEAD~1

.PHONY: bench-guard
bench-guard: build tools ## Compare the working tree with a commit, fail if it is slower; BASE=COMMIT (default: the one before HEAD), BENCH for flags
	@base=$$(test/bench/base.sh '$(BASE)'); cd test && $(RUN_BENCH) -base "$$base" -size 512MiB -rounds 15 $(BENCH) guard

bench-%: build tools ## One measurement, or a group such as lazy
	cd test && $(RUN_BENCH) $(BENCH) $*

.PHONY: peers
peers: build tools # The other programs for bench-peers and performance
	@test/erofs.sh || echo "mkfs.erofs cannot be built; the EROFS snapshotter is measured with what is installed, or left out"
	test/bench/stargz/build.sh .cache/tools/stargz
	@rm -f .cache/tools/ollama; timeout 20m test/bench/ollama/build.sh .cache/tools/ollama || echo "Ollama cannot be built; it is left out"

.PHONY: bench-peers
bench-peers: peers ## Compare with other snapshotters and clients, which are built first
	cd test && PATH=$(CURDIR)/.cache/tools/erofs:$$PATH && $(RUN_BENCH) -stargz ../.cache/tools/stargz -ollama ../.cache/tools/ollama $(BENCH) peers

.PHONY: performance
performance: peers ## All measurements, also of other programs; prints the tables and writes them into contrib/docs/performance.md
	cd test && PATH=$(CURDIR)/.cache/tools/erofs:$$PATH && $(RUN_BENCH) -stargz ../.cache/tools/stargz -ollama ../.cache/tools/ollama -page ../contrib/docs/performance.md $(BENCH)

.PHONY: clean
clean: ## Remove all built files
	rm -rf bin .cache
