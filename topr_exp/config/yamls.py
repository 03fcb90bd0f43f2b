"""The folders that hold YAMLs: the package's, the user's own, plugins'; and the values of a loss's own YAML."""

import functools
import importlib.resources
import os
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from topr_exp.schema import build, drop_keys, flatten
from topr_exp.types import ConfigError

PACKAGE = Path(__file__).resolve().parents[1]
# An installed package carries `conf/` inside; in the repository it stands at the top.
CONF = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parent / "conf"
GLOBAL_PACKAGE = re.compile(r"^#\s*@package\s+_global_", re.MULTILINE)
PLUGINS = "topr_exp.conf"  # entry points of installed packages, each naming a module of YAMLs


class OwnFolder:
    """The folder of --config-dir of the last command line; None without one."""

    path: ClassVar[Path | None] = None

    @classmethod
    def use(cls, config_dir: str | None) -> None:
        """Look for YAMLs in this folder of the user's, too; ConfigError where there is none."""
        folder = None
        if config_dir is not None:
            folder = Path(os.path.expanduser(config_dir))
            if not folder.is_dir():
                raise ConfigError(f"--config-dir {config_dir}: no such folder")
            folder = folder.resolve()
        cls.path = folder


@functools.cache
def plugin_modules() -> dict[str, str]:
    """The modules of YAMLs that installed packages bring, by the plugin's name, in its order."""
    return {plugin.name: plugin.value for plugin in sorted(metadata.entry_points(group=PLUGINS))}


def yaml_folders() -> Iterator[Path]:
    """The folders in which a choice is looked for, the first that has it wins."""
    if OwnFolder.path is not None:
        yield OwnFolder.path
    yield CONF
    for module in plugin_modules().values():
        try:
            yield Path(str(importlib.resources.files(module)))
        except ImportError:  # Hydra says so where a choice of it is asked for
            continue


def find_yaml(group: str, choice: str) -> Path | None:
    """The YAML of a choice; None where it is in none of the folders."""
    for folder in yaml_folders():
        if (path := folder / group / f"{choice}.yaml").is_file():
            return path
    return None


def values_of_yaml(path: Path) -> dict[str, Any]:
    """The values that a group's YAML sets itself, by dotted key of a run, before any is computed."""
    values = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(values, dict)  # other settings were refused
    is_global = GLOBAL_PACKAGE.search(path.read_text(encoding="utf-8"))
    prefix = "" if is_global else f"{path.parent.name}."
    return dict(flatten(drop_keys(values, "defaults"), prefix=prefix))


def loss_files() -> dict[str, Path]:
    """The YAML of each loss by its name: the package's, the user's own and those of plugins."""
    files = dict[str, Path]()
    for folder in yaml_folders():
        for path in (folder / "algo").glob("*.yaml"):
            files.setdefault(path.stem, path)
    return dict(sorted(files.items()))


def loss_of_own_yaml(loss: Any) -> Any | None:
    """The loss as its own YAML has it; None where no YAML of its name makes one of its class."""
    path = find_yaml("algo", loss.name)
    if path is None:
        return None
    return loss_of_file(path, path.stat().st_mtime_ns, loss.__class__)


@functools.lru_cache(maxsize=256)
def loss_of_file(path: Path, modified: int, kind: type) -> Any | None:
    """The loss of class `kind` with the values of a YAML; None for values that are not of this class.

    modified: the file's time of change, so that a changed file is read anew.
    """
    try:
        values = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
        assert isinstance(values, dict)
        return build(kind, drop_keys(values, "defaults", "_target_"), "algo.")
    except (ConfigError, OmegaConfBaseException, YAMLError):
        return None
    except OSError as error:  # the name of a run says what differs from these values
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
