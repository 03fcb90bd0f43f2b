"""Import of a user's own code: losses, sources of problems, samplers, graders."""

import sysconfig
import traceback
from pathlib import Path
from types import ModuleType

import topr_exp


class UserCodeError(Exception):
    """The reason for which a user's module was not imported, in one line."""

    def __init__(self, error: BaseException) -> None:
        message = error.msg if isinstance(error, SyntaxError) else error
        reason = " ".join(f"{type(error).__name__}: {message}".split())
        self.line = failed_line(error)
        if self.line is not None:
            reason = f"{self.line}, raised {reason}"
        super().__init__(reason)


def import_user_module(name: str, *, runs_here: bool = True) -> ModuleType:
    """Import a module by `topr_exp.import_named_module`; UserCodeError for what it raises, sys.exit among it."""
    try:
        return topr_exp.import_named_module(name, runs_here=runs_here)
    except (Exception, SystemExit) as error:
        raise UserCodeError(error) from error


def failed_line(error: BaseException) -> str | None:
    """The line of the user's code at which its import failed; None where no file was found to import.

    Frames of libraries are passed over: wandb, for one, wraps sys.exit.
    """
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{Path(error.filename).name}, line {error.lineno}"
    libraries = [Path(topr_exp.__file__).parent]
    for kind in ("stdlib", "purelib"):
        libraries.append(Path(sysconfig.get_path(kind)))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        is_library = any(folder in path.parents for folder in libraries)
        if path.is_file() and not is_library:
            return f"{path.name}, line {frame.lineno}"
    return None
