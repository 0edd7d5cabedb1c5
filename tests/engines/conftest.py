"""Only the `engines` stack has transformers, vLLM, Ray and llama.cpp. All of them are real here, on CPU."""

import os

from tests.stacks import why_not

if why_not("engines") is None:
    os.environ.update(
        HF_HUB_OFFLINE="1",
        RAY_AUTH_MODE="disabled",
        RAY_USAGE_STATS_ENABLED="0",
        RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",  # Ray listens on loopback alone; read when it is imported
        TOKENIZERS_PARALLELISM="false",
        VLLM_NO_USAGE_STATS="1",
    )
    import pytest

    from tests.engines import models, servers

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item, call):
        """A test that fails because a server has ended says what the server said."""
        report = yield
        if report.failed:
            report.sections += [(f"{url} has ended", said) for url, said in servers.last_words().items()]
        return report

    @pytest.fixture(scope="session")
    def tiny_path():
        """A small Qwen2 with random weights and a chat template, on disk."""
        return models.tiny_qwen2()

    @pytest.fixture(scope="session")
    def tiny(tiny_path):
        from rolltape.engines import TransformersEngine

        return TransformersEngine(tiny_path)

    @pytest.fixture(scope="session")
    def seeing():
        """A small LLaVA with random weights."""
        from rolltape.engines import TransformersEngine

        return TransformersEngine(models.tiny_llava())

    @pytest.fixture(scope="session")
    def tiling():
        """A small Idefics3 with random weights: it cuts pictures into tiles, and vLLM has it too."""
        from rolltape.engines import TransformersEngine

        return TransformersEngine(models.tiny_idefics3())
