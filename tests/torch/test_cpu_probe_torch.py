"""The real torch of this environment gets through the probe, as tests that use bf16 need it to."""

from rolltape import cpu_probe


def test_the_products_work_in_the_environment_that_tests_run_in():
    assert cpu_probe.has_torch()
    assert cpu_probe.find() == cpu_probe.Answer()
