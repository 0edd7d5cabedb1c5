from roll.distributed.scheduler.protocol import DataProto, drawn
from roll.distributed.scheduler.rollout_mock_mixin import RolloutMockMixin


class RolloutScheduler(RolloutMockMixin):
    def __init__(self, config, env_manager_config, resource_manager, infer_cluster, mode, collator=None):
        self.config = config
        self.mode = mode
        self.live = 0
        self._init_rollout_mock()

    async def get_batch(self, data: DataProto, batch_size):
        global_step = data.meta_info["global_step"]
        if self._should_load_mock(global_step):
            return await self._load_mock_batch(global_step)
        self.live += 1
        if batch_size == 0:
            return None
        batch = drawn(batch_size)
        await self._maybe_dump_batch(batch, global_step)
        return DataProto.to_remote(batch)
