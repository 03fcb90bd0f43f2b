"""Process of a vLLM engine, as the process that sends it requests sees it."""

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from topr_exp.runtime.files import disk_errors, open_own_file
from topr_exp.types import ConfigError, TOPRError

WORKER = Path(__file__).with_name("vllm_worker.py")
SEARCHED_LOG_LINES = 200  # from the end of the log, for the error that ended an engine
CLOSE_SECONDS = 15.0
# Prefixes of variables that name a process of a distributed run, which an engine is not.
DISTRIBUTED_PREFIXES = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_")


class Engine:
    """A process that imports vLLM at once and answers requests; it ends with `close` and with its parent.

    The output of vLLM goes to `log`.
    """

    def __init__(self, python: str, log: Path, *, threads: int, gpu: str | None, timeout_minutes: float) -> None:
        """gpu: as in CUDA_VISIBLE_DEVICES; None leaves that as it is. timeout_minutes: the longest silence.

        ConfigError if `python` does not start.
        """
        self.log = log
        self.timeout_minutes = timeout_minutes
        self.is_busy = True  # with the import of vLLM, which `close` does not wait for
        parent_socket, worker_socket = socket.socketpair()
        log.parent.mkdir(parents=True, exist_ok=True)
        with worker_socket, disk_errors(f"write {log}"), open(log, "wb", opener=open_own_file) as output:
            try:
                # A new session: Ctrl-C reaches this process alone, which then ends the engine and its workers.
                self.process = subprocess.Popen(
                    [python, str(WORKER), str(worker_socket.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=engine_environment(threads, gpu),
                    pass_fds=[worker_socket.fileno()],
                    start_new_session=True,
                )
            except OSError as error:
                parent_socket.close()
                raise ConfigError(f"sampler.python={python}: can't be started ({error.strerror})") from None
        self.connection = Connection(parent_socket.detach())

    def ask(self, request: str, report: Callable[[int], None] = lambda tokens: None, **values: Any) -> dict[str, Any]:
        """Return the answer to a request; TOPRError (one line) if vLLM refuses it or the engine ended or hangs.

        report: called every few seconds of a `generate` with the number of tokens that were drawn.
        """
        self.is_busy = True  # stays true after an error, when the engine's state is unknown
        try:
            self.connection.send({"request": request, **values})
            answer = self.receive(request)
            while "drawn_tokens" in answer:
                report(answer["drawn_tokens"])
                answer = self.receive(request)
        except (EOFError, OSError):
            raise TOPRError(f"the vLLM engine ended{self.logged_error()}; its log is {self.log}") from None
        self.is_busy = False
        if "error" in answer:
            raise TOPRError(f"vLLM could not {request}: {answer['error']}; its log is {self.log}")
        return answer

    def receive(self, request: str) -> dict[str, Any]:
        """Wait for the next message about a request; TOPRError if none comes."""
        if not self.connection.poll(60 * self.timeout_minutes):
            raise TOPRError(
                f"the vLLM engine gave no answer to {request} within {self.timeout_minutes:g} minutes"
                f"{self.logged_error()}; look at its log {self.log}, then lower sampler.prompts_per_shard"
            )
        return self.connection.recv()

    def logged_error(self) -> str:
        """Return ": " and the newest line of the log that names an error; "" without one."""
        with contextlib.suppress(OSError):
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
            for line in reversed(lines[-SEARCHED_LOG_LINES:]):
                if "Error" in line or "error:" in line:
                    return f": {line.strip()[:300]}"
        return ""

    def close(self) -> None:
        """End the process, at once if it is busy; its memory is free when this returns."""
        self.connection.close()  # the worker ends when it reads the end of the stream
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0 if self.is_busy else CLOSE_SECONDS)
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # with the processes that vLLM started
        self.process.wait()


def engine_environment(threads: int, gpu: str | None) -> dict[str, str]:
    """Return this process's environment with the variables that an engine needs."""
    environment = dict(os.environ)
    for name in os.environ:
        if name.startswith(DISTRIBUTED_PREFIXES):
            del environment[name]
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
    return environment
