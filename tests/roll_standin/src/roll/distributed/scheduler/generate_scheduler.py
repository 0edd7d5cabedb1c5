from roll.distributed.scheduler.protocol import DataProto, drawn
from roll.distributed.scheduler.rollout_mock_mixin import RolloutMockMixin


class DynamicSamplingScheduler(RolloutMockMixin):
    def __init__(
        self,
        pipeline_config,
        actor_cluster,
        reward_clusters,
        dataset,
        collect_fn_cls,
        collect_fn_kwargs,
        state=None,
        is_val=False,
        get_data_item_kwargs=None,
    ):
        self.pipeline_config = pipeline_config
        self.is_val = is_val
        self.live = 0
        self._init_rollout_mock()  # before reward_clusters is there, as in ROLL
        self.reward_clusters = reward_clusters

    async def get_batch_opt_level_0(self, data: DataProto, batch_size: int) -> DataProto:
        return drawn(batch_size, level=0)  # never dumped, as in ROLL

    async def get_batch(self, data: DataProto, global_step: int, batch_size: int) -> DataProto:
        if self._should_load_mock(global_step):
            return await self._load_mock_batch(global_step)
        self.live += 1
        if self.pipeline_config.generate_opt_level == 0:
            return await self.get_batch_opt_level_0(data, batch_size)
        batch = drawn(batch_size, domains=list(self.reward_clusters))
        await self._maybe_dump_batch(batch, global_step)
        return DataProto.to_remote(batch)
