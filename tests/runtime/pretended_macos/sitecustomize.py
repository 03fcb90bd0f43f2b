"""With this folder on PYTHONPATH a process and its children take this machine for a Mac, without Linux's own calls.

Other packages, whose binaries are Linux's, still see Linux.
"""

import ctypes
import importlib
import os
import resource
import sys
import types

LINUX_CALLS = ["sched_getaffinity", "fdatasync", "posix_fallocate", "pidfd_open", "memfd_create", "pipe2", "getrandom"]
for name in LINUX_CALLS:
    vars(os).pop(name, None)


class PretendedSys(types.ModuleType):
    @property
    def platform(self):
        reader = sys._getframe(1).f_code.co_filename
        return "darwin" if "/topr_exp/" in reader or "/multiprocessing/" in reader else "linux"


def refuse_proc(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(("/proc", "/dev/shm")):
        reader = sys._getframe(1).f_code.co_filename
        if "/topr_exp/" in reader or "/pathlib.py" in reader:
            raise FileNotFoundError(2, "no such file on macOS", arguments[0])


def refuse_memory_limit(kind, limits, set_limit=resource.setrlimit):
    if kind == resource.RLIMIT_AS:
        raise ValueError("current limit exceeds maximum limit")
    set_limit(kind, limits)


def find_symbol(library, name, find=ctypes.CDLL.__getattr__):
    if name == "prctl":
        raise AttributeError("dlsym(RTLD_DEFAULT, prctl): symbol not found")
    return find(library, name)


importlib._bootstrap._new_module = types.ModuleType  # else every module would be of the type of `sys`
sys.__class__ = PretendedSys
sys.addaudithook(refuse_proc)
resource.setrlimit = refuse_memory_limit
ctypes.CDLL.__getattr__ = find_symbol
