"""The compilers of this machine, with which torch.compile and Triton build kernels."""

import os
import shutil


def c_compiler() -> str | None:
    """The path of the C compiler that Triton would call for kernels on a GPU; None where there is none."""
    return first_program([os.environ.get("CC") or "gcc", "gcc", "clang"])


def cxx_compiler() -> str | None:
    """The path of the C++ compiler that torch.compile would call for kernels on a CPU; None where there is none."""
    return first_program([os.environ.get("CXX") or "g++", "g++", "clang++"])


def first_program(names: list[str]) -> str | None:
    """The path of the first of these programs that is on PATH."""
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return path
    return None
