"""Which packages the distribution installs; all the rest is in pyproject.toml.

Folders named ``app`` and ``consumers`` would collide with people's own packages, so they are installed as
``tokenmill.app`` and ``tokenmill.consumers``. pyproject.toml can map folders but then lists every subpackage by hand,
and one forgotten there would be missing from the wheel alone.
"""

from setuptools import find_packages, setup

FOLDERS = {"tokenmill": "tokenmill", "tokenmill.app": "app", "tokenmill.consumers": "consumers"}

setup(
    packages=[
        package
        for name, folder in FOLDERS.items()
        for package in (name, *(f"{name}.{sub}" for sub in find_packages(folder)))
    ],
    package_dir=FOLDERS,
)
