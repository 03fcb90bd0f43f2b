"""Files of ours in a folder that somebody else packed: no link leads out of it, and no FIFO or device holds us up."""

import errno
import os
import signal
from unittest.mock import Mock

import pytest

import topr_exp.runs.attempt as attempt
from tests.conftest import contents, overrides, refused, small_config, write_file
from tests.store.conftest import open_table, shard
from tests.sweep_tools import command
from topr_exp.models.folder_damage import model_damage
from topr_exp.models.weight_headers import read_header
from topr_exp.runs import run_lock
from topr_exp.runs.finished import changed_results
from topr_exp.runs.folder import RunFolder
from topr_exp.runs.overwrite import move_aside
from topr_exp.runs.records import Metrics
from topr_exp.runs.run_files import read_run_file
from topr_exp.runs.training_data import read_row_numbers
from topr_exp.runtime import locks
from topr_exp.runtime.checksums import find_damage
from topr_exp.runtime.files import read_whole
from topr_exp.runtime.json_files import MAX_SIZE, read_lines
from topr_exp.sampling.engine import Engine
from topr_exp.store import Store
from topr_exp.store.shards import examine, read_row_count
from topr_exp.sweeps import __main__ as sweeps
from topr_exp.sweeps.processes import redirect
from topr_exp.tracking.tracker import send_finished
from topr_exp.types import TOPRError

TEXT = "the only copy of a thesis"
PLANTS = {
    "symbolic link": lambda path, thesis: path.symlink_to(thesis),
    "hard link": lambda path, thesis: path.hardlink_to(thesis),
    "dangling link": lambda path, thesis: path.symlink_to(thesis.with_name("absent")),
    "FIFO": lambda path, thesis: os.mkfifo(path),
    "device": lambda path, thesis: path.symlink_to("/dev/zero"),
}
every_plant = pytest.mark.parametrize("plant", PLANTS)


@pytest.fixture
def thesis(tmp_path):
    """A file elsewhere, which stays as it is."""
    path = tmp_path / "thesis.tex"
    path.write_text(TEXT)
    yield path
    assert path.read_text() == TEXT
    assert not path.with_name("absent").exists()


@pytest.fixture(autouse=True)
def deadline():
    """What waits for a FIFO would wait for ever."""

    def fail(*_):
        raise AssertionError("it waited")

    handler = signal.signal(signal.SIGALRM, fail)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, handler)


# ---- writing


def append_metrics(path):
    path.rename(path.with_name("metrics.jsonl"))
    Metrics(path.parent).append({"loss": 1.0})


WRITES = {
    "lock": lambda path: run_lock.lock_run_folder(path.parent, path.name),
    "metrics": append_metrics,
    "log": redirect,
    "engine": lambda path: Engine("/bin/true", path, threads=1, gpu=None, timeout_minutes=1.0),
}


@every_plant
@pytest.mark.parametrize("write", WRITES)
def test_whatever_writes_into_a_file_that_may_be_there_refuses_what_is_not_ours(write, plant, thesis, tmp_path):
    (tmp_path / "run").mkdir()
    PLANTS[plant](tmp_path / "run/own", thesis)

    with refused(r"cannot write .*(symbolic link|no regular file|another name is linked)"):
        WRITES[write](tmp_path / "run/own")


@every_plant
@pytest.mark.parametrize("name", ["x.claim", "shard-00000.claim", "x.tmp", "STORE"])
def test_a_store_is_tidied_of_its_own_files_alone(name, plant, thesis, tmp_path):
    """The names are those of a table that another process made whole, or of the mark of a store."""
    table = open_table(tmp_path / "store")
    table.fill(shard)
    (tmp_path / "store/STORE").unlink()
    folder = tmp_path / "store" if name == "STORE" else table.folder
    PLANTS[plant](folder / name, thesis)
    remainder = table.folder / "shard-00001.arrow.0123456789ab.tmp"
    remainder.touch()

    assert open_table(tmp_path / "store").fill(shard) == 0

    assert os.path.lexists(folder / name)
    assert not remainder.exists() or name in ("shard-00000.claim", "STORE"), "what is refused ends the tidying"


@pytest.mark.parametrize("name, status", [(run_lock.CLAIM, 1), (attempt.LOG, 0)])
def test_a_run_whose_lock_or_log_is_a_link_says_so(name, status, thesis, tmp_path):
    folder = small_config(tmp_path).folder
    folder.mkdir(parents=True)
    (folder / name).symlink_to(thesis)

    outcome = command("topr_exp", *overrides(tmp_path))

    assert outcome.returncode == status, outcome.stderr
    assert "it is a symbolic link" in outcome.stderr
    assert "Traceback" not in outcome.stderr


# ---- folders that are links

LINKED_FOLDERS = """
checkpoints checkpoints/1 iteration-1 iteration-1/model model sampler store wandb tensorboard
""".split()  # noqa: SIM905 - names read better than a list of strings


@pytest.fixture
def elsewhere(tmp_path):
    """A folder with files whose names are replaced or removed in runs, stores and sweeps; it stays as it is."""
    folder = tmp_path / "elsewhere"
    for name in ("1/x", "model/x", "step-00000001/x", "key.json", "shard-00000.claim", "offline-run-1/x", "run-1/x"):
        write_file(folder / name, TEXT)
    files = contents(folder)
    yield folder
    assert contents(folder) == files


@pytest.mark.parametrize("is_done", [False, True], ids=["unfinished", "finished"])
@pytest.mark.parametrize("name", LINKED_FOLDERS)
def test_no_run_goes_on_where_one_of_its_folders_leads_elsewhere(name, is_done, elsewhere, tmp_path):
    config = small_config(tmp_path)
    link = config.folder / name
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    if is_done:
        (config.folder / "DONE").touch()
        (config.folder / "summary.json").write_text('{"final": {}}')

    with refused(f"^{link} is a symbolic link"), RunFolder(config):
        pass


@pytest.mark.parametrize("name", ["rollouts", "rollouts/HASH"])
def test_no_table_is_made_where_its_folder_leads_elsewhere(name, elsewhere, tmp_path):
    table = open_table(tmp_path / "store")
    link = tmp_path / "store" / name.replace("HASH", table.folder.name)
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)

    with refused(f"^{link} is a symbolic link"):
        table.fill(shard)


def test_a_folder_that_cannot_be_listed_may_hide_a_link(elsewhere, tmp_path, monkeypatch):
    """A packed run may have the mode 0311: its files can be opened and written, and not listed."""
    config = small_config(tmp_path)
    config.folder.mkdir(parents=True)
    (config.folder / "checkpoints").symlink_to(elsewhere)

    def refuse_listing(folder):
        raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, refuse_listing)

    with refused(f"^cannot read {config.folder}: Permission denied"), RunFolder(config):
        pass


def test_a_store_may_be_a_link_itself(tmp_path):
    (tmp_path / "large").mkdir()
    (tmp_path / "store").symlink_to(tmp_path / "large")

    assert open_table(tmp_path / "store").fill(shard) > 0


def test_no_run_is_moved_or_sent_where_a_folder_leads_elsewhere(elsewhere, tmp_path):
    run = tmp_path / "sweep" / "run-1"
    run.mkdir(parents=True)
    for name in ("replaced", "run-1/wandb"):
        (tmp_path / "sweep" / name).symlink_to(elsewhere)

    with refused("replaced is a symbolic link"):
        move_aside(run)
    with refused("wandb is a symbolic link"):
        send_finished("wandb", run)
    assert run.is_dir()


@pytest.mark.parametrize("name", [".submitit", "RUN"])
def test_no_sweep_is_resumed_where_a_folder_leads_elsewhere(name, elsewhere, sweep_of_two, tmp_path, capsys):
    link = sweep_of_two / name
    if name == "RUN":
        link = next(sweep_of_two.glob("tis*"))
        link.rename(tmp_path / "moved")
        link.symlink_to(tmp_path / "moved")
    else:
        link.symlink_to(elsewhere)

    assert sweeps.main(["resume", str(sweep_of_two)]) == 1
    assert capsys.readouterr().err.endswith(
        f"error: {link} is a symbolic link, and what lies elsewhere could change: remove it\n"
    )


# ---- reading


@every_plant
def test_what_is_no_lock_is_nobodys(plant, thesis, tmp_path):
    PLANTS[plant](tmp_path / "run.claim", thesis)

    assert locks.living_owner(tmp_path / "run.claim") is None


READS = {
    "state.json": read_run_file,
    "eval.jsonl": read_lines,
    "examples.npy": read_row_numbers,
    "DONE": lambda path: changed_results(path.parent),
    "checksums.json": lambda path: find_damage(path.parent),
    "shard-00000.arrow": examine,
    "shard-00001.arrow": read_row_count,
    "key.json": lambda path: Store(path.parents[2]).open(path.parent),
    "model.safetensors": read_header,
    "tokenizer.json": lambda path: model_damage(path.parent),
}
LOCKS = {"key.json": locks.lock_shared, "shard-00000.claim": locks.acquire}


@pytest.mark.parametrize("name", LOCKS)
def test_no_fifo_is_locked_or_waited_for(name, tmp_path):
    os.mkfifo(tmp_path / name)

    with pytest.raises(OSError, match="no regular file"):
        LOCKS[name](tmp_path / name)


@pytest.mark.parametrize("name", ["state.json", "DONE", "checksums.json"])
def test_no_small_file_of_many_bytes_is_read(name, tmp_path):
    with (tmp_path / name).open("wb") as file:
        file.truncate(MAX_SIZE + 1)  # takes no room on the disk

    with refused("it has 268,435,457 bytes"):
        READS[name](tmp_path / name)


def test_a_file_that_memory_does_not_hold_is_an_error_of_the_disk():
    with pytest.raises(OSError, match="larger than the memory"):
        read_whole(Mock(read=Mock(side_effect=MemoryError)))


@pytest.mark.parametrize("plant", ["FIFO", "device"])
@pytest.mark.parametrize("name", READS)
def test_what_is_no_regular_file_is_not_waited_for_and_not_read(name, plant, thesis, tmp_path):
    folder = tmp_path / "rollouts" / ("0" * 16)
    folder.mkdir(parents=True)
    PLANTS[plant](folder / name, thesis)

    try:
        outcome = str(READS[name](folder / name))
    except (TOPRError, OSError) as error:
        outcome = str(error)

    assert "no regular file" in outcome


def test_logs_of_a_run_are_shown_of_regular_files_alone(sweep_of_two, capsys):
    folder = next(sweep_of_two.glob("tis*"))
    (folder / "log.txt").write_text("a line")
    os.mkfifo(folder / "error.txt")

    assert attempt.last_error(folder) == ""
    assert sweeps.main(["logs", str(sweep_of_two), folder.name]) == 1
    assert "error.txt: it is no regular file" in capsys.readouterr().err
