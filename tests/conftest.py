"""Fixtures that several files share: a small forest, grown once a file and copied for each test."""

import shutil
from pathlib import Path

import pytest

from kit import grow
from vine import Vine


@pytest.fixture(scope="module")
def grown(tmp_path_factory) -> Path:
    return grow(tmp_path_factory.mktemp("grown") / "trees")


@pytest.fixture
def root(grown, tmp_path) -> Path:
    return Path(shutil.copytree(grown, tmp_path / "trees"))


@pytest.fixture
def vine(root):
    with Vine(root) as opened:
        yield opened
