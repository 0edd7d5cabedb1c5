import pickle
from pathlib import Path


class RolloutMockMixin:
    """Dumps with pickle, as ROLL does."""

    def _get_config(self):
        return getattr(self, "config", None) or self.pipeline_config

    def _get_mode_str(self):
        return self.mode if hasattr(self, "mode") else "val" if self.is_val else "train"

    def _init_rollout_mock(self):
        self.mock_config = self._get_config().rollout_mock

    def _should_load_mock(self, global_step):
        return self.mock_config and self.mock_config.enable and self.mock_config.mode == "mock"

    def _should_dump_batch(self):
        return self.mock_config and self.mock_config.enable and self.mock_config.mode == "dump"

    def _file(self, step):
        return Path(self.mock_config.dump_dir, self._get_mode_str(), f"step_{step:06d}.pkl")

    async def _maybe_dump_batch(self, batch, global_step):
        if self._should_dump_batch():
            await self._dump_batch(batch, global_step)

    async def _dump_batch(self, batch, global_step):
        self._file(global_step).parent.mkdir(parents=True, exist_ok=True)
        self._file(global_step).write_bytes(pickle.dumps(batch))

    async def _load_mock_batch(self, global_step):
        return pickle.loads(self._file(global_step).read_bytes())
