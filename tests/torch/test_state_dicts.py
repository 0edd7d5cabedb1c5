"""What torch calls a state: it is recorded as it is, and loads again."""

import torch

from tests.exact import assert_roundtrip, roundtrip


def test_a_state_dict_comes_back_with_its_versions():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    state = model.state_dict()
    assert_roundtrip(state)
    found = roundtrip({"model": state, "step": 3})["model"]
    assert found._metadata == state._metadata
    assert found._metadata["1"]["version"] == 2
    torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).load_state_dict(found)


def test_the_state_of_an_optimizer_comes_back():
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert_roundtrip(optimizer.state_dict())
