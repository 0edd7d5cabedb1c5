from dataclasses import dataclass


@dataclass
class RolloutMockConfig:
    enable: bool = False
    mode: str = "dump"
    dump_dir: str = "./rollout_mock_dumps"
