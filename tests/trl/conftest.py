"""Only the `trl` stack has TRL and the loggers people use with it. All of them are real here, on CPU."""

import os

from tests.stacks import why_not

if why_not("trl") is None:
    os.environ.update(
        HF_HUB_OFFLINE="1",
        TOKENIZERS_PARALLELISM="false",
        TRL_EXPERIMENTAL_SILENCE="1",
        OMP_NUM_THREADS="1",  # the same sums in the same order, however many processes there are
        ACCELERATE_USE_CPU="true",
        WANDB_MODE="offline",
        WANDB_SILENT="true",
        MLFLOW_ALLOW_FILE_STORE="true",
    )
    import pytest

    from tests.object_servers.fixtures import *  # noqa: F403
    from tests.trl import models

    @pytest.fixture(scope="session")
    def model(tmp_path_factory):
        """A small Qwen2 with random weights, on disk."""
        return models.tiny_qwen2(tmp_path_factory.mktemp("model"))
