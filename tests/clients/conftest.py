"""Only the `serve` stack has these clients. All are real, and so is the engine: llama.cpp's server."""

import os

from tests.stacks import why_not

if why_not("clients") is None:
    os.environ.update(
        HF_HUB_OFFLINE="1",
        TOKENIZERS_PARALLELISM="false",
        TRANSFORMERS_VERBOSITY="error",
        WANDB_MODE="disabled",
    )
    import pytest

    from tests.engines import models, servers

    TOOLS = """
{%- if tools %}
    {{- '<|im_start|>system\\nAnswer with a call of a function:' }}
    {%- for tool in tools %}
        {{- '\\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '\\nA call is <tool_call>{"name": name, "arguments": arguments}</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content %}
        {{- message.content }}
    {%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}
        {{- (call.function.arguments | tojson) + '}</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
    """SmolLM2 was not taught to call functions; written like this, and shown how, it does."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item, call):
        """A test that fails because the engine has ended says what the engine said."""
        report = yield
        if report.failed:
            report.sections += [(f"{url} has ended", said) for url, said in servers.last_words().items()]
        return report

    @pytest.fixture(scope="session")
    def engine():
        """llama.cpp's server with SmolLM2, four answers at a time."""
        return servers.llama_cpp_server(parallel=4, template=TOOLS.strip())

    @pytest.fixture
    def tape(tmp_path):
        return tmp_path / "tape"

    @pytest.fixture(scope="session")
    def tokenizer_path():
        """A small tokenizer with a chat template, on disk."""

        def build(path):
            models.tokenizer().save_pretrained(path)

        return models.saved("tokenizer", build)
