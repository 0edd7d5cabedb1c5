"""Only the `verl` stack has verl, Ray and TransferQueue. Everything here uses the real ones, on CPU."""

import os
import sys

from tests.stacks import why_not

if why_not("verl") is None:
    os.environ.update(
        RAY_AUTH_MODE="disabled",
        RAY_USAGE_STATS_ENABLED="0",
        RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",  # Ray listens on loopback alone; read when it is imported
        HF_HUB_OFFLINE="1",
        TOKENIZERS_PARALLELISM="false",
    )
    import pytest
    from omegaconf import OmegaConf

    from tests.object_servers.fixtures import *  # noqa: F403

    @pytest.fixture(autouse=True)
    def no_tape_left_open(monkeypatch):
        """Each test opts in for itself."""
        yield
        monkeypatch.undo()
        install = sys.modules.get("rolltape.integrations.verl.install")
        if install is not None:
            install.stop()

    @pytest.fixture(scope="session")
    def ray_session():
        import ray

        ray.init(num_cpus=4, include_dashboard=False, object_store_memory=100_000_000, log_to_driver=False)
        yield ray
        ray.shutdown()

    @pytest.fixture(scope="session")
    def queue(ray_session):
        """One TransferQueue with one storage unit."""
        import transfer_queue as tq

        storage = {"SimpleStorage": {"num_data_storage_units": 1, "total_storage_size": 1000}}
        tq.init(OmegaConf.create({"backend": storage}))
        yield tq
        tq.close()

    @pytest.fixture
    def empty_queue(queue):
        """The queue, emptied after the test."""
        yield queue
        for partition, items in (queue.kv_list() or {}).items():
            if items:
                queue.kv_clear(keys=list(items), partition_id=partition)

    @pytest.fixture
    def trainer_config(tmp_path):
        """The part of verl's configuration that matters here; change it with dotted names."""

        def make(**changes):
            config = OmegaConf.create({
                "trainer": {
                    "experiment_name": "exp", "project_name": "proj",
                    "v1": {"trainer_mode": "sync", "sync": {"parameter_sync_step": 1}},
                },
                "data": {
                    "train_batch_size": 2, "gen_batch_size": None,
                    "max_prompt_length": 8, "max_response_length": 4,
                    "train_files": "train.parquet", "seed": 1,
                },
                "actor_rollout_ref": {
                    "model": {"path": "tiny"},
                    "rollout": {"n": 2, "temperature": 1.0, "top_p": 1.0, "seed": 0},
                },
                "skip": {role: {} for role in ("rollout", "rollout_tq", "async_rollout")},
            })  # fmt: skip
            for name, value in changes.items():
                OmegaConf.update(config, name.replace("__", "."), value, force_add=True)
            return config

        return make
