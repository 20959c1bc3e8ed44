# Bare `make` prints this help.

GO ?= go

.PHONY: help
help: ## print this help
	@awk -F ':.*## ' '/^[a-z0-9%-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## archive a web site with three worker processes, one of which is killed
	$(GO) run ./cmd/pgwake demo

.PHONY: test
test: ## run the tests; they start their own PostgreSQL
	$(GO) test ./...

.PHONY: race
race: ## run the tests with the race detector, shuffled, five times
	$(GO) test -race -shuffle=on -count=5 ./...

.PHONY: ci
ci: ## run everything that must hold before a change lands
	.ci/run

.PHONY: matrix
matrix: ## run the tests on PostgreSQL 14, 16, 17 and 18
	internal/pgtest/matrix/run 14 16 17 18

test-pg-%: ## run the tests on one PostgreSQL major, as in test-pg-17
	internal/pgtest/matrix/run $*

.PHONY: fuzz
fuzz: ## fuzz every parser for 20 s
	internal/pgtest/fuzz 20s

.PHONY: model
model: ## check the model of the wake gate with spin, and that its broken variants are refuted
	docs/model/check

# A proof prints its figures, the goal, and ok or short.

prove-1-1: ## the demo on a fresh clone
	internal/proof/fresh-clone demo

prove-1-2: ## the tests on a fresh clone, five times, as root and not, and on other majors
	internal/proof/fresh-clone tests

prove-1-9: ## the field cases
	internal/proof/cases

prove-1-10: ## import rules, leak checks and fuzz targets
	internal/proof/hygiene

prove-1-%: ## one promise of the main job, 1 to 10, as in prove-1-3
	$(GO) test ./internal/proof -run '^TestProve_1_$*$$' -count=1 -timeout 30m -v -args -full

.PHONY: prove-1
prove-1: ## all promises of the main job, one after the other
	for i in 1 2 3 4 5 6 7 8 9 10; do $(MAKE) --no-print-directory prove-1-$$i || exit 1; done
