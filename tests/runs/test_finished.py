"""Results at rest: each has a checksum in the mark of a finished run, and whoever reads a changed one names it."""

import pytest

from tests.conftest import flip_bit, small_config
from topr_exp import compare, pipeline, track
from topr_exp.report.reader import find_runs
from topr_exp.runs.finished import DONE_FILE, changed_results, result_files
from topr_exp.runtime.checksums import write_checksum_list
from topr_exp.store.__main__ import main as store

WITHOUT_CHECKSUM = {"log.txt", "state.json", DONE_FILE}  # they go on changing; the mark's own is in it
WITH_OWN_CHECKSUMS = {"model", "store"}


@pytest.fixture
def run_folder(copied_smoke):
    """A finished run that a test may change."""
    return copied_smoke.folder


def repeat(folder):
    pipeline.run(small_config(folder.parents[1]))


READERS = {
    "the command given again": repeat,
    "compare": lambda folder: compare.compare([folder], None, "pass@1"),
    "report": lambda folder: print(find_runs([folder])[0].notes),
    "track": lambda folder: track.main([str(folder), "tensorboard"]),
}


def test_every_file_of_a_finished_run_has_a_checksum(run_folder):
    """A file that is new among the results is to be listed, too."""
    results = set(result_files(run_folder))
    for path in run_folder.rglob("*"):
        name = path.relative_to(run_folder)
        if path.is_file() and path not in results and name.parts[0] not in WITH_OWN_CHECKSUMS:
            assert name.as_posix() in WITHOUT_CHECKSUM
    assert changed_results(run_folder) == []


def test_each_changed_result_is_named(run_folder):
    for path in result_files(run_folder):
        content = path.read_bytes()
        name = path.relative_to(run_folder).as_posix()
        flip_bit(path)
        assert changed_results(run_folder) == [f"{name} has another checksum"]
        path.unlink()
        assert changed_results(run_folder) == [f"{name}: No such file or directory"]
        path.write_bytes(content)


def test_a_mark_that_is_cut_short_or_names_files_outside_of_its_folder_is_refused(run_folder):
    mark = run_folder / DONE_FILE
    mark.write_bytes(mark.read_bytes()[:-3])
    assert changed_results(run_folder) == ["DONE is no whole list of checksums"]

    for name in ("/dev/zero", "../other"):
        write_checksum_list(mark, {name: "0"})
        assert changed_results(run_folder) == ["DONE is no whole list of checksums"]


@pytest.mark.parametrize("reader", READERS)
def test_whoever_reads_a_changed_result_names_it(reader, run_folder, capsys):
    (run_folder / "metrics.jsonl").write_bytes(b"")

    READERS[reader](run_folder)

    assert "metrics.jsonl has another checksum" in "".join(capsys.readouterr())


def test_verify_counts_changed_results_as_damage_and_knows_none_of_an_older_version(run_folder, capsys):
    assert store(["verify", str(run_folder)]) == 0
    out = capsys.readouterr().out
    assert f"sound    {run_folder}: all results right" in out
    assert out.endswith("1 model, 1 store, 1 finished run; 0 damaged\n")

    (run_folder / "metrics.jsonl").write_bytes(b"")
    assert store(["verify", str(run_folder)]) == 1
    out = capsys.readouterr().out
    assert f"DAMAGED  {run_folder}: metrics.jsonl has another checksum" in out
    assert out.endswith("1 finished run; 1 damaged\n")

    (run_folder / DONE_FILE).write_bytes(b"")
    assert store(["verify", str(run_folder)]) == 0
    assert f"no sums  {run_folder}: finished by a version that kept no checksums" in capsys.readouterr().out


def test_what_changed_is_named_before_a_damaged_summary_is_made_again(run_folder, capsys):
    (run_folder / "summary.json").write_text("{")
    (run_folder / "completions.jsonl").write_text("")

    repeat(run_folder)

    assert "completions.jsonl has another checksum" in capsys.readouterr().err
    assert changed_results(run_folder) == []
