"""Locks are tested where they are used: by processes that fill a table of the store."""

from tests.store.conftest import *  # noqa: F403
