# Needs make and Python >= 3.10 with pip; the rest is installed under ~/.cache/rolltape (or $ROLLTAPE_CACHE) once.
PYTHON ?= python3
NOX = $(PYTHON) tools/envs.py nox -m nox --noxfile noxfile.py
RESULTS = .test-results

.PHONY: demo test bench lint

demo:
	@$(NOX) -s demo

test:
	@rm -rf $(RESULTS) && mkdir $(RESULTS)
	@status=0; \
	$(NOX) --report $(RESULTS)/sessions.json || status=$$?; \
	$(PYTHON) tools/tally.py || status=$$?; \
	exit $$status

bench:
	@$(NOX) -s bench

lint:
	@$(NOX) -s lint
