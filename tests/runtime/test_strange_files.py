"""Files of ours in a folder that somebody else packed: no link leads out of it, and no FIFO or device holds us up."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import topr_exp.runs.attempt as attempt
from tests.conftest import config_of, overrides, refused
from tests.run_folders import make_sweep_of_two
from tests.store.conftest import SHARDS, open_table, shard
from tests.sweep_tools import command
from topr_exp.models.model_folder import model_damage, read_header
from topr_exp.runs import run_lock
from topr_exp.runs.finished import changed_results
from topr_exp.runs.records import Metrics
from topr_exp.runs.run_files import read_run_file
from topr_exp.runs.training_data import read_row_numbers
from topr_exp.runtime import locks
from topr_exp.runtime.checksums import find_damage
from topr_exp.runtime.files import open_own_file
from topr_exp.runtime.json_files import read_lines
from topr_exp.runtime.terminal import LastingStream
from topr_exp.sampling.engine import Engine
from topr_exp.store import Store
from topr_exp.store.shards import examine, read_rows
from topr_exp.sweeps import __main__ as sweeps
from topr_exp.sweeps.processes import redirect
from topr_exp.types import TOPRError

TEXT = "the only copy of a thesis"


@pytest.fixture
def thesis(tmp_path: Path) -> Path:
    path = tmp_path / "thesis.tex"
    path.write_text(TEXT)
    return path


@pytest.fixture(autouse=True)
def deadline() -> Iterator[None]:
    """What waits for a FIFO would wait for ever."""

    def fail(*_: object) -> None:
        raise AssertionError("it waited")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def symbolic_link(path: Path, thesis: Path) -> None:
    path.symlink_to(thesis)


def hard_link(path: Path, thesis: Path) -> None:
    path.hardlink_to(thesis)


def dangling_link(path: Path, thesis: Path) -> None:
    path.symlink_to(thesis.with_name("absent"))


def fifo(path: Path, thesis: Path) -> None:
    os.mkfifo(path)


def device(path: Path, thesis: Path) -> None:
    path.symlink_to("/dev/zero")


STRANGE = [symbolic_link, hard_link, dangling_link, fifo, device]
Plant = Callable[[Path, Path], None]


def take_lock(path: Path) -> None:
    run_lock.lock_run_folder(path.parent, path.name)


def append_metrics(path: Path) -> None:
    path.rename(path.with_name("metrics.jsonl"))
    Metrics(path.parent).append({"loss": 1.0})


def start_engine(path: Path) -> None:
    Engine("/bin/true", path, threads=1, gpu=None, timeout_minutes=1.0)


@pytest.mark.parametrize("plant", STRANGE)
@pytest.mark.parametrize("write", [take_lock, append_metrics, redirect, start_engine])
def test_whatever_writes_into_a_file_that_may_be_there_refuses_what_is_not_ours(write, plant, thesis, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    plant(folder / "own", thesis)
    with refused(r"cannot write .*(symbolic link|no regular file|another name is linked)"):
        write(folder / "own")
    assert thesis.read_text() == TEXT
    assert not thesis.with_name("absent").exists()


@pytest.mark.parametrize("plant", STRANGE)
def test_what_is_no_lock_is_nobody_s(plant: Plant, thesis: Path, tmp_path: Path) -> None:
    plant(tmp_path / "run.claim", thesis)
    assert locks.living_owner(tmp_path / "run.claim") is None


@pytest.mark.parametrize("plant", STRANGE)
@pytest.mark.parametrize("name", ["x.claim", "shard-00000.claim", "shard-00000.arrow.claim", "x.tmp", "STORE"])
def test_a_store_is_tidied_of_its_own_files_alone(name: str, plant: Plant, thesis: Path, tmp_path: Path) -> None:
    """The names are those of a table that another process made whole, or of the mark of a store."""
    table = open_table(tmp_path / "store")
    assert table.fill(shard) == 40 * SHARDS
    (tmp_path / "store/STORE").unlink()
    strange = (tmp_path / "store" if name == "STORE" else table.folder) / name
    plant(strange, thesis)
    left = table.folder / "shard-00001.arrow.0123456789ab.tmp"
    left.touch()
    assert open_table(tmp_path / "store").fill(shard) == 0
    assert thesis.read_text() == TEXT
    assert not thesis.with_name("absent").exists()
    assert os.path.lexists(strange)
    assert not left.exists() or name in ("shard-00000.claim", "STORE"), "what is refused ends the tidying"


def test_a_shard_whose_lock_is_a_link_is_not_made(thesis: Path, tmp_path: Path) -> None:
    table = open_table(tmp_path)
    table.folder.mkdir(parents=True)
    (table.folder / "shard-00003.claim").symlink_to(thesis)
    with refused("cannot write .*shard-00003.claim: it is a symbolic link"):
        table.fill(shard)
    assert thesis.read_text() == TEXT


@pytest.mark.parametrize("name", [run_lock.CLAIM, attempt.LOG])
def test_a_run_whose_lock_or_log_is_a_link(name: str, thesis: Path, tmp_path: Path) -> None:
    folder = config_of(*overrides(tmp_path)).folder
    folder.mkdir(parents=True)
    (folder / name).symlink_to(thesis)
    done = command("topr_exp", *overrides(tmp_path))
    assert thesis.read_text() == TEXT
    assert "it is a symbolic link" in done.stderr
    assert done.returncode == (1 if name == run_lock.CLAIM else 0), done.stderr
    assert "Traceback" not in done.stderr


READS: dict[str, Callable[[Path], object]] = {
    "state.json": read_run_file,
    "eval.jsonl": read_lines,
    "error.txt": lambda path: attempt.last_error(path.parent),
    "examples.npy": read_row_numbers,
    "DONE": lambda path: changed_results(path.parent),
    "checksums.json": lambda path: find_damage(path.parent),
    "shard-00000.arrow": examine,
    "shard-00001.arrow": read_rows,
    "key.json": lambda path: Store(path.parents[2]).open(path.parent),
    "model.safetensors": read_header,
    "tokenizer.json": lambda path: model_damage(path.parent),
}


@pytest.mark.parametrize("plant", [fifo, device])
@pytest.mark.parametrize("name", READS)
def test_what_is_no_regular_file_is_not_waited_for_and_not_read(name: str, plant: Plant, tmp_path: Path) -> None:
    folder = tmp_path / "rollouts" / ("0" * 16)
    folder.mkdir(parents=True)
    plant(folder / name, tmp_path / "absent")
    refusals = (TOPRError, OSError)
    try:
        outcome = str(READS[name](folder / name))
    except refusals as error:
        outcome = str(error)
    assert "no regular file" in outcome or (name, outcome) == ("error.txt", "")


def test_logs_of_a_run_are_shown_of_regular_files_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = make_sweep_of_two(tmp_path / "sweep")
    folder = next(sweep.glob("tis*"))
    (folder / "log.txt").write_text("a line")
    os.mkfifo(folder / "error.txt")
    assert sweeps.main(["logs", str(sweep), folder.name]) == 1
    assert "error.txt: it is no regular file" in capsys.readouterr().err


def test_our_own_files_are_opened_as_before(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    for mode, content in (("a", "1"), ("a", "12"), ("w", "3")):
        with open(path, mode, opener=open_own_file) as file:
            file.write(content[-1])
        assert path.read_text() == content
    assert LastingStream.log is None
