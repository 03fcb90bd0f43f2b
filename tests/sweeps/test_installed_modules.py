"""Modules of installed distributions: regular and editable ones are, what lies beside them is not."""

import json

import pytest

from tests.conftest import each_row, write_file
from topr_exp.sweeps.installed_modules import is_installed


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of installed distributions: one regular, two editable with their projects beside it."""
    site = tmp_path / "site-packages"
    install(site, "regular", ["regular_loss/__init__.py"])
    install(site, "src-layout", ["_src_layout.pth"], project=tmp_path / "a")
    install(site, "flat-layout", ["_flat_layout.pth"], project=tmp_path / "b")
    (site / "_src_layout.pth").write_text(f"{tmp_path / 'a/src'}\n")
    (site / "_flat_layout.pth").write_text(f"import finder\n{tmp_path / 'b'}\n")
    for package in ("a/src/loss_of_a", "a/unpacked", "b/flat_layout", "b/unpacked"):
        (tmp_path / package).mkdir(parents=True)
    monkeypatch.syspath_prepend(site)


def install(site, name, files, project=None):
    """Write what an installer notes of a distribution."""
    notes = site / f"{name.replace('-', '_')}-1.0.dist-info"
    write_file(notes / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (notes / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    if project is not None:
        origin = {"url": project.as_uri(), "dir_info": {"editable": True}}
        (notes / "direct_url.json").write_text(json.dumps(origin))


MODULES = """
"regular_loss.deep.Loss" | True
"loss_of_a" | True
"flat_layout.Loss" | True
"unpacked.Loss" | False
"missing" | False
"""


@each_row("module expected", MODULES, literals=True)
def test_a_module_is_installed_where_a_distribution_of_any_kind_has_it(module, expected, site):
    assert is_installed(module) is expected
