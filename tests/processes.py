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
from contextlib import suppress
from multiprocessing import util
from pathlib import Path

from topr_exp.sweeps.processes import rendezvous

# A server that has the imports done and forks: processes start in milliseconds, and pytest's own is not forked.
PROCESSES = multiprocessing.get_context("forkserver")
STORE = ["pytest", "pandas", "numpy.random", "topr_exp.store"]
LLAMA = "transformers.models.llama.modeling_llama"
TRAINING = ["topr_exp.training.trainer", "topr_exp.training.parallel", LLAMA, "peft"]
PROCESSES.set_forkserver_preload([*STORE, *TRAINING, "topr_exp.sweeps.preload"])


def start_command(*words, module="topr_exp", output=None, environment=None):
    """`python -m MODULE` with these words in a process of its own; what it prints goes to `output`/out and err, or not.

    environment: in place of this process's.
    """
    arguments = (module, words, dict(environment or os.environ), output)
    process = PROCESSES.Process(target=run_command, args=arguments)
    process.start()
    return process


def run_command(module, words, environment, output):
    for descriptor, name in ((1, "out"), (2, "err")):
        path = output / name if output else os.devnull
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(Path(__file__).parents[1])
    sys.argv = [module, *words]
    util.spawnv_passfds = fork_server
    program = importlib.import_module(module)
    if not hasattr(program, "main"):
        program = importlib.import_module(f"{module}.__main__")
    sys.exit(program.main())


def fork_server(path, arguments, descriptors):
    """What multiprocessing asks a new interpreter to be, in a fork of this process, which has the imports done."""
    sys.stdout.flush()
    if (pid := os.fork()) == 0:
        sys.stdout = sys.__stdout__
        sys.stderr = sys.__stderr__
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

    def __init__(self, module, *words, **options):
        self.folder = Path(tempfile.mkdtemp())
        self.process = start_command(*words, module=module, output=self.folder, **options)

    def send_signal(self, number):
        os.kill(self.process.pid, number)

    @property
    def returncode(self):
        return self.process.exitcode

    def communicate(self, timeout):
        self.process.join(timeout)
        assert self.process.exitcode is not None, "it did not end"
        out, err = ((self.folder / name).read_text() for name in ("out", "err"))
        shutil.rmtree(self.folder)
        return out, err


def state_of(pid):
    """The letter of a process's state, as ps shows it; "Z" where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def is_running(pid):
    return state_of(pid) != "Z"


def together(size, function, *arguments):
    """What `function(*arguments)` returns in each of `size` processes, by rank."""
    workers, receivers = [], []
    with rendezvous() as place:
        for rank in range(size):
            receiver, sender = PROCESSES.Pipe(duplex=False)
            work = (rank, size, place, sender, function, arguments)
            worker = PROCESSES.Process(target=work_as_rank, args=work, daemon=True)
            worker.start()
            sender.close()
            workers.append(worker)
            receivers.append(receiver)
        try:
            answers = [pickle.loads(receiver.recv_bytes()) for receiver in receivers]
        finally:
            for worker in workers:
                worker.kill()
                worker.join()
    for answer in answers:
        assert not isinstance(answer, str) or not answer.startswith("Traceback"), answer
    return answers


def work_as_rank(rank, size, place, sender, function, arguments):
    import torch

    from topr_exp.runtime import distributed

    torch.set_num_threads(1)
    os.environ.update({**place, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)})
    try:
        with distributed.process_group("cpu"):
            result = function(*arguments)
            distributed.barrier()
        sender.send_bytes(pickle.dumps(result))  # by pickle, since torch would share memory with a process that ends
    except BaseException:
        sender.send_bytes(pickle.dumps(traceback.format_exc()))
