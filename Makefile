# Every target works on a fresh clone with Go and a C compiler (the race detector needs one), but for those that say what
# else they need, and `make test`, which needs RabbitMQ and finds, starts or installs it. `make` alone prints the list.

GO         ?= go
VERSION    ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
FUZZTIME   ?= 60s
BENCHFLAGS ?=

.DEFAULT_GOAL := help
.PHONY: help build demo test services services-stop check docs bench bench-sidebyside fuzz interop-a2a interop-llm clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/orchestrator
	CGO_ENABLED=0 $(GO) build -ldflags '-X main.version=$(VERSION)' -o bin/orchestrator ./cmd/orchestrator

demo: build ## play the whole story offline: subagents, a slow peer, a late reply
	@bin/orchestrator demo

test: ## run all tests with the race detector, shuffled, with the services they need
	@scripts/services.sh run $(GO) test -race -shuffle=on -count=1 -timeout 20m ./...

services: ## find, start or install RabbitMQ for tests and leave it running; it prints what to export
	@scripts/services.sh start

services-stop: ## stop what make services started
	@scripts/services.sh stop

check: ## static checks: gofmt, vet, staticcheck, go fix, go mod tidy
	@unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then echo "gofmt -w these files:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) fix -diff ./...
	$(GO) mod tidy -diff

docs: ## write docs/cli.md, configuration.md, events.md and openapi.json from the code
	$(GO) test ./cmd/orchestrator -run '^TestDocs' -count=1 -update
	$(GO) test ./httpapi -run '^TestDocs' -count=1 -update

bench: ## measure what the product costs beyond its parts (the queue with RabbitMQ, if there is one); BENCHFLAGS="-run append" picks
	$(GO) run ./bench $(BENCHFLAGS)
	$(if $(BENCHFLAGS),,@$(MAKE) --no-print-directory bench-sidebyside)

# A module of its own, so that the product doesn't depend on what it is compared with. -mod=mod lets it follow our go.mod.
bench-sidebyside: ## compare with adk-go and trpc-agent-go (the first build takes minutes, and the network)
	cd bench/sidebyside && $(GO) run -mod=mod .

fuzz: ## run every fuzz target for FUZZTIME (60s)
	@scripts/fuzz.sh $(FUZZTIME)

interop-a2a: ## talk to an agent built with npm's @a2a-js/sdk (needs Node.js 20 and npm)
	@GO='$(GO)' scripts/interop-a2a.sh

interop-llm: ## ask the models of npm's @copilotkit/aimock, an emulator of vendors (needs Node.js 20 and npm)
	@GO='$(GO)' scripts/interop-llm.sh

clean: ## remove what was built
	rm -rf bin dist interop/*/node_modules
