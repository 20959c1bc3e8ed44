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

prove-2-8-model: model ## the model of the wake gate holds, its broken variants do not

# A proof prints its figures, the goal, and ok or short.

prove-1-1: ## the demo on a fresh clone
	internal/proof/fresh-clone demo

prove-1-2: ## the tests on a fresh clone, five times, as root and not, and on other majors
	internal/proof/fresh-clone tests

prove-1-9: ## the field cases
	internal/proof/cases 1.9 docs/cases.md 'B[0-9]+ ' 'field cases'

prove-1-10: ## import rules, leak checks and fuzz targets
	internal/proof/hygiene

prove-1-%: ## one promise of the main job, 1 to 10, as in prove-1-3
	$(GO) test ./internal/proof -run '^TestProve_1_$*$$' -count=1 -timeout 30m -v -args -full

.PHONY: prove-1
prove-1: ## all promises of the main job, one after the other
	for i in 1 2 3 4 5 6 7 8 9 10; do $(MAKE) --no-print-directory prove-1-$$i || exit 1; done

# What follows measures, and wants a quiet machine.

prove-2-1: ## enqueues beside a busy fleet, of no trigger and of plain notify
	cd bench && $(GO) run . check enqueue/busy --prefix 'prove 2.1: '

prove-2-2: ## the same with an idle process of another type, and with spare processes
	cd bench && $(GO) run . check enqueue/foreign enqueue/spare --prefix 'prove 2.2: '

prove-2-3: ## a million tasks, twice: none waits beside a free slot; takes 10 minutes
	$(GO) test ./internal/proof -run '^TestProve_2_3$$' -count=1 -timeout 30m -v -args -full

prove-2-4: ## from enqueue to handler, idle and at 1,000 and 5,000 a second
	cd bench && $(GO) run . check wake --prefix 'prove 2.4: '

prove-2-5: ## statements a task with 16 idle processes
	cd bench && $(GO) run . check herd --prefix 'prove 2.5: '

prove-2-6: ## what 1 and 64 idle processes cost, in 5 minutes each
	cd bench && $(GO) run . check idle --idle 5m --prefix 'prove 2.6: '

prove-2-7: ## 64 idle processes and one task due at an instant
	cd bench && $(GO) run . check due --prefix 'prove 2.7: '

prove-2-8: prove-2-8-model ## keeper killed, stopped, cut off; a locked row; the field cases of waking
	$(GO) test ./internal/proof -run '^TestProve_2_8$$' -count=1 -timeout 30m -v -args -full
	internal/proof/cases 2.8 docs/cases.md 'B(01|03|10) ' 'field cases'

prove-2-9: ## where PostgreSQL's rules show through
	internal/proof/cases 2.9 docs/architecture.md '.*`worker` Test' edges

prove-3-0: ## the raw loop that drains are compared with, and all settings
	cd bench && $(GO) run . run drain --only raw --rounds 1

prove-3-1: bench/peers/node/node_modules ## a drain, of the raw loop and of peers, and its processor time
	cd bench && $(GO) run . check drain --prefix 'prove 3.1: '

prove-3-2: ## handlers of 1 ms, of what 100 slots allow
	cd bench && $(GO) run . check handlers --prefix 'prove 3.2: '

prove-3-3: bench/peers/node/node_modules ## from enqueue to handler, beside peers
	cd bench && $(GO) run . check latency/idle latency/1000 --prefix 'prove 3.3: '

prove-3-4: ## enqueueing in bulk and one by one, of bare COPY and inserts
	cd bench && $(GO) run . check enqueue/bulk enqueue/single --prefix 'prove 3.4: '

prove-3-5: ## minutes with a held snapshot
	cd bench && $(GO) run . check snapshot --prefix 'prove 3.5: '

prove-3-6: ## a killed worker at defaults
	cd bench && $(GO) run . check crash --prefix 'prove 3.6: '

prove-3-7: ## 16 processes, of one
	cd bench && $(GO) run . check fleet --prefix 'prove 3.7: '

prove-3-8: ## 10 million settled tasks
	cd bench && $(GO) run . check archive --prefix 'prove 3.8: '

bench/peers/node/node_modules: bench/peers/node/package-lock.json
	cd bench/peers/node && npm ci --no-fund --no-audit
