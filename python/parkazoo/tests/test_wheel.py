"""What the package says of itself is true."""

from __future__ import annotations

import re

from servers import HERE

PROJECT = HERE.parent
DESCRIPTION = (PROJECT / "pyproject.toml").read_text()


def test_the_license_that_goes_along_is_that_of_the_checkout() -> None:
    whole = PROJECT.parent.parent / "LICENSE"
    assert (PROJECT / "LICENSE").read_bytes() == whole.read_bytes()
    assert 'license-files = ["LICENSE"]' in DESCRIPTION


def test_the_least_python_is_the_same_wherever_it_is_named() -> None:
    """It said "Python 3", and which, only where an installer looks."""
    needed = re.search(r'requires-python = ">=3\.(\d+)"', DESCRIPTION)
    listed = re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', DESCRIPTION)
    assert needed and min(map(int, listed)) == int(needed[1])
    assert f"Python 3.{needed[1]} or newer" in (PROJECT / "README.md").read_text()
    assert f'python_version = "3.{needed[1]}"' in DESCRIPTION


def test_the_guides_that_the_readme_names_go_along() -> None:
    named = set(
        re.findall(r"\]\((docs/[a-z-]+\.md)", (PROJECT / "README.md").read_text())
    )
    assert named and all((PROJECT / name).is_file() for name in named)
    assert 'docs = "parkazoo/docs"' in DESCRIPTION
