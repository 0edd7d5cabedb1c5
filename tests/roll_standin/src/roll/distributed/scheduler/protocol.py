import numpy as np


class RemoteBatch:
    """Columns that lie elsewhere."""

    def __init__(self, columns):
        self._columns = columns

    def keys(self):
        return list(self._columns)

    def __getitem__(self, name):
        return self._columns[name]


class DataProto:
    def __init__(self, batch=None, non_tensor_batch=None, remote_batch=None, meta_info=None):
        self._batch = {} if batch is None and remote_batch is not None else batch
        self._non_tensor_batch = {} if non_tensor_batch is None else non_tensor_batch
        self._remote_batch = remote_batch
        self.meta_info = {} if meta_info is None else meta_info

    @property
    def batch(self):
        raise AssertionError("ROLL hands out a proxy here; an adapter must not take it for the batch")

    def __len__(self):
        columns = [*({} if self._batch is None else self._batch).values(), *self._non_tensor_batch.values()]
        if self._remote_batch is not None:
            columns += [self._remote_batch[name] for name in self._remote_batch.keys()]  # noqa: SIM118
        return len(columns[0]) if columns else 0

    @classmethod
    def to_remote(cls, data):
        columns = {**data._batch, **data._non_tensor_batch}
        return cls(remote_batch=RemoteBatch(columns), meta_info=data.meta_info)


def drawn(samples, **meta):
    """A batch that no other call will return."""
    draw = np.random.default_rng()
    return DataProto(
        batch={
            "input_ids": draw.integers(0, 50_000, (samples, 12)),
            "scores": draw.standard_normal(samples).astype(np.float32),
        },
        non_tensor_batch={
            "traj_id": np.array([f"t{draw.integers(1 << 60)}" for _ in range(samples)], object)
        },
        meta_info={"metrics": {"score": [float(draw.random())]}, **meta},
    )
