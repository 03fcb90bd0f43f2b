"""The share of a GPU's memory that an engine takes, and whether it leaves room to train."""

import pytest

from topr_exp.sampling.gpu_share import free_share, has_room_to_train, others_hold_memory


@pytest.mark.parametrize("free, has_room", [(20, False), (100, True)])
def test_room_to_train_is_what_an_engine_leaves(gpu, policy, free, has_room):
    gpu.free = free

    assert has_room_to_train(policy, None) == has_room
    assert not has_room_to_train(policy, 0.9)


@pytest.mark.parametrize("free, stays, share", [(109, False, 0.75), (109, True, 0.37), (139, False, 0.9)])
def test_an_engine_takes_the_free_memory(gpu, free, stays, share):
    """Beside an 8B policy in float32, and alone on a GPU; half of it where it stays."""
    gpu.free = free

    assert free_share(stays=stays) == share


@pytest.mark.parametrize("parts", [1, 2], ids=["leaves", "stays"])
def test_runs_that_share_a_gpu_share_its_memory(gpu, parts):
    """If they start at once or one after the other, with the memory of each one's policy."""
    gpu.share_among(4)
    gpu.reserved = 10.0
    largest = (0.9 / 4 - 10 / 140) / parts

    for _ in range(4):
        share = free_share(stays=parts == 2)
        assert 0.1 / parts < share <= largest
        gpu.free -= share * 140 + gpu.reserved
        assert gpu.free > 0
    assert others_hold_memory()
