"""The faults of `make faults`; the command itself checks first that each can be planted."""

from collections import Counter

from scripts import faults


def test_there_are_at_most_a_hundred_faults_and_none_twice():
    changes = Counter((fault.file, fault.old, fault.new) for fault in faults.read_faults())

    assert 0 < len(changes) <= 100
    assert set(changes.values()) == {1}
