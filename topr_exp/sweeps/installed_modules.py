"""Modules of installed distributions: their code was chosen by the user, not by whoever packed a folder of runs."""

import json
import re
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname


def is_installed(module: str) -> bool:
    """True if a module's package is one of an installed distribution, of an editable one too."""
    package = module.partition(".")[0]
    if package in metadata.packages_distributions():
        return True
    return any(is_of_editable(package, distribution) for distribution in metadata.distributions())


def is_of_editable(package: str, distribution: metadata.Distribution) -> bool:
    """True if a package is one of a distribution that is installed editable, whose files lie in its project.

    In the project's own folder, that is the one of the distribution's name: others may have been put there since.
    """
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if not origin.get("dir_info", {}).get("editable"):
        return False
    if package == normalized(distribution.name):
        return True
    project = Path(url2pathname(urlsplit(origin["url"]).path)).resolve()
    sources = [folder for folder in source_folders(distribution) if folder.resolve() != project]
    return any(holds_package(folder, package) for folder in sources)


def normalized(name: str) -> str:
    """The package that a distribution's name stands for."""
    return re.sub(r"[-.]+", "_", name)


def source_folders(distribution: metadata.Distribution) -> list[Path]:
    """The folders that the .pth files of a distribution put on the module search path."""
    folders = []
    for file in distribution.files or ():
        path = Path(str(file.locate()))
        if path.suffix == ".pth" and path.is_file():
            lines = path.read_text(encoding="utf-8").splitlines()
            folders += [path.parent / line for line in lines if not line.startswith("import ")]
    return folders


def holds_package(folder: Path, package: str) -> bool:
    return (folder / package).is_dir() or (folder / f"{package}.py").is_file()
