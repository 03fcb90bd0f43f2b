"""A real Slurm for tests: what they need, and how it is started."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import ROOT

SCRIPT = ROOT / "scripts" / "slurm-for-tests.sh"
MISSING = [name for name in ("slurmctld", "slurmd", "munged", "sbatch") if shutil.which(name) is None]

NEEDS_SLURM = [
    pytest.mark.slurm,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(MISSING), reason=f"no Slurm here ({', '.join(MISSING)} missing; see {SCRIPT.name})"),
    pytest.mark.skipif(os.geteuid() != 0, reason="Slurm's daemons need root"),
]


@contextmanager
def running_slurm(folder: Path, **settings: str) -> Iterator[str]:
    """A Slurm of its own, its files in a folder; its configuration's path."""
    try:
        done = subprocess.run(
            [SCRIPT, "start", folder], env=os.environ | settings, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        yield done.stdout.strip().removeprefix("export SLURM_CONF=")
    finally:
        subprocess.run([SCRIPT, "stop", folder], check=True, timeout=300)
