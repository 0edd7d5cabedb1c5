# Needs make and Python >= 3.10 with pip; the rest is installed under ~/.cache/rolltape (or $ROLLTAPE_CACHE) once.
#
#   make demo                  train a small language model, replay the training, change it, break it
#   make test                  every test of every stack; ROLLTAPE_JOBS=1: one stack after the other
#   make soak                  what `make test` samples (kills, flipped bits, full disks, forks, long runs; on S3 too) in many
#                              rounds: MINUTES=20 ROUNDS=20 SEED=0; to have round 7 again: SEED=7 ROUNDS=1;
#                              ONLY=store: of core, store, serve and verl this one
#   make fuzz                  changed recordings, metrics, gates and requests: EXAMPLES=20000 of each, and five times as
#                              many dumps, from SEED=0 on
#   make compat                every release of docs/compatibility.md, which it writes; ONLY="verl-0.6.1 trl": these
#   make bench                 the benchmarks of the core; fails if a promise is not kept
#   make bench ONLY=large      one part: large, small, replay, write, arguments, growth, compact, verify, viewer,
#                              many_runs, trl, generation, serve, store, ray_data, index; ROUNDS=11
#   make test ONLY=core        one stack alone; ARGS="tests/test_steps.py -k parse" goes to pytest
#   make lint                  ruff, mypy and import-linter
#   make docs                  the documentation site, into site/
#
# ROLLTAPE_CPU_ISA=probe|limit|free: whether oneDNN is limited on CPUs that announce what they do not have; by default
# a probe finds out (tools/cpu_limit.py).
PYTHON ?= python3
NOX = $(PYTHON) tools/envs.py nox -m nox --noxfile noxfile.py
RESULTS = .test-results
MINUTES = 20

.PHONY: demo test soak fuzz compat bench lint docs

demo:
	@$(NOX) -s demo

test:
	@rm -rf $(RESULTS) && mkdir $(RESULTS)
	@status=0; \
	$(PYTHON) tools/envs.py nox tools/sessions.py $(ONLY) -- $(ARGS) || status=$$?; \
	$(PYTHON) tools/tally.py || status=$$?; \
	exit $$status

soak:
	@ROLLTAPE_SOAK_ROUNDS=$(or $(ROUNDS),20) ROLLTAPE_SOAK_SEED=$(or $(SEED),0) ROLLTAPE_SOAK_MINUTES=$(MINUTES) \
	ROLLTAPE_SOAK_ONLY="$(ONLY)" $(NOX) -s soak

fuzz:
	@ROLLTAPE_FUZZ_EXAMPLES=$(or $(EXAMPLES),20000) ROLLTAPE_FUZZ_SEED=$(or $(SEED),0) $(NOX) -s fuzz

compat:
	@$(NOX) -s compat -- $(ONLY)

bench:
	@$(NOX) -s bench -- $(if $(ONLY),--only $(ONLY)) $(if $(ROUNDS),--rounds $(ROUNDS))

lint:
	@$(NOX) -s lint

docs:
	@$(NOX) -s docs
