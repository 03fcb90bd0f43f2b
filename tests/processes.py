"""Several processes that are one run, as torchrun would start them, on this machine's CPU."""

import importlib
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import util
from pathlib import Path
from typing import Any

from topr_exp.sweeps.processes import rendezvous

# A server that has the imports done and forks: processes start in milliseconds, and pytest's own is not forked.
PROCESSES = multiprocessing.get_context("forkserver")
STORE = ["pytest", "pandas", "numpy.random", "topr_exp.store"]
LLAMA = "transformers.models.llama.modeling_llama"
TRAINING = ["topr_exp.training.trainer", "topr_exp.training.parallel", LLAMA, "peft"]
PROCESSES.set_forkserver_preload([*STORE, *TRAINING, "topr_exp.sweeps.preload"])


def start_command(*words: str, module: str = "topr_exp", output: Path | None = None, **more: Any) -> Any:
    """`python -m MODULE` with these words in a process of its own; what it prints goes to `output`/out and err, or not.

    environment: in place of this process's.
    """
    environment = dict(more.get("environment") or os.environ)
    process = PROCESSES.Process(target=run_command, args=(module, words, environment, output))
    process.start()
    return process


def run_command(module: str, words: tuple[str, ...], environment: dict[str, str], output: Path | None) -> None:
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(output / name if output else os.devnull, os.O_WRONLY | os.O_CREAT, 0o644), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(Path(__file__).parents[1])
    sys.argv = [module, *words]
    util.spawnv_passfds = fork_server  # type: ignore[attr-defined]
    found = importlib.import_module(module)
    sys.exit((found if hasattr(found, "main") else importlib.import_module(f"{module}.__main__")).main())


def fork_server(path: bytes, arguments: list[str], descriptors: list[int]) -> int:
    """What multiprocessing asks a new interpreter to be, in a fork of this process, which has the imports done."""
    sys.stdout.flush()
    if (pid := os.fork()) == 0:
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        for descriptor in {*map(int, os.listdir("/proc/self/fd"))} - {0, 1, 2, *descriptors}:
            with suppress(OSError):  # that of the list
                os.close(descriptor)
        try:
            exec(arguments[-1], {})
        finally:
            os._exit(0)
    return pid


class Command:
    """What `subprocess.Popen` offers, of a command that is forked from the server."""

    def __init__(self, module: str, *words: str, **more: Any) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.process = start_command(*words, module=module, output=self.folder, **more)

    def send_signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    @property
    def returncode(self) -> int:
        return self.process.exitcode

    def communicate(self, timeout: float) -> tuple[str, str]:
        self.process.join(timeout)
        assert self.process.exitcode is not None, "it did not end"
        out, err = ((self.folder / name).read_text() for name in ("out", "err"))
        shutil.rmtree(self.folder)
        return out, err


def together(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `function(*arguments)` returns in each of `size` processes, by rank."""
    pairs = [PROCESSES.Pipe(duplex=False) for _ in range(size)]
    with rendezvous() as place:
        workers = [
            PROCESSES.Process(target=work, args=(rank, size, place, theirs, function, arguments), daemon=True)
            for rank, (_, theirs) in enumerate(pairs)
        ]
        for worker in workers:
            worker.start()
        for _, theirs in pairs:
            theirs.close()
        try:
            answers = [pickle.loads(ours.recv_bytes()) for ours, _ in pairs]
        finally:
            for worker in workers:
                worker.kill()
                worker.join()
    for answer in answers:
        assert not isinstance(answer, str) or not answer.startswith("Traceback"), answer
    return answers


def work(
    rank: int, size: int, place: dict[str, str], answer: Any, function: Callable[..., Any], arguments: Any
) -> None:
    import torch

    from topr_exp.runtime import distributed

    torch.set_num_threads(1)
    os.environ.update({**place, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)})
    try:
        with distributed.process_group("cpu"):
            result = function(*arguments)
            distributed.barrier()
        answer.send_bytes(pickle.dumps(result))  # by pickle, since torch would share memory with a process that ends
    except BaseException:
        answer.send_bytes(pickle.dumps(traceback.format_exc()))
