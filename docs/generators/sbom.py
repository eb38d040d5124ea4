"""The SBOM of each image, in CycloneDX, from its locks: ``make sbom``.

An image has the distributions of its lock for Linux and for the Python of its base. Debian's packages come with the
base, whose own SBOM has them.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from uuid import NAMESPACE_URL, uuid5

from packaging.markers import Marker

from tokenmill import __version__

from .licenses_page import LOCKED, LOCKS, PAGE, rows

IMAGES: Final = ("service", "tools", "train")
SYSTEM: Final = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "sys_platform": "linux",
}


class Package(NamedTuple):
    """A distribution in an image."""

    name: str
    version: str
    license: str


def python_of_the_images() -> str:
    """Return the version of Python that the Dockerfile's base has, such as 3.11."""
    found: list[str] = re.findall(r"^ARG PYTHON_IMAGE=python:(3\.\d+)", Path("Dockerfile").read_text(), re.MULTILINE)
    return found[0]


def packages(image: str) -> Iterator[Package]:
    """Yield what an image installs from its locks."""
    version = python_of_the_images()
    system = SYSTEM | {"python_version": version, "python_full_version": f"{version}.99"}
    licenses = rows(PAGE.read_text())
    locks = ("service", image) if image != "service" else ("service",)
    lines = {line for lock in locks for line in re.findall(LOCKED, LOCKS[lock].read_text(), re.MULTILINE)}
    for name, locked, marker in sorted(lines):
        if not marker or Marker(marker.removeprefix(";").strip()).evaluate(system):
            yield Package(name, locked, licenses[name])


def sbom(image: str) -> str:
    """Return an image's SBOM, the same for the same locks; cyclonedx-python-lib must be there.

    Raises:
        ValueError: CycloneDX's schema refuses it.

    """
    # Not in the environment of a checkout: `make sbom` brings it.
    from cyclonedx.contrib.license.factories import LicenseFactory  # noqa: PLC0415
    from cyclonedx.model.bom import Bom  # noqa: PLC0415
    from cyclonedx.model.component import Component, ComponentType  # noqa: PLC0415
    from cyclonedx.output.json import JsonV1Dot6  # noqa: PLC0415
    from cyclonedx.schema import SchemaVersion  # noqa: PLC0415
    from cyclonedx.validation.json import JsonStrictValidator  # noqa: PLC0415
    from packageurl import PackageURL  # noqa: PLC0415

    def component(one: Package, kind: ComponentType) -> Component:
        address = PackageURL("pypi", name=one.name, version=one.version)
        known = [LicenseFactory().make_from_string(one.license)]
        return Component(
            name=one.name, version=one.version, type=kind, purl=address, bom_ref=str(address), licenses=known
        )

    own = component(Package("tokenmill", __version__, "Apache-2.0"), ComponentType.APPLICATION)
    parts = [component(one, ComponentType.LIBRARY) for one in packages(image)]
    made = Bom(components=parts, serial_number=uuid5(NAMESPACE_URL, " ".join(str(one.purl) for one in [own, *parts])))
    made.metadata.component = own
    made.register_dependency(own, parts)
    written = json.loads(JsonV1Dot6(made).output_as_string())
    del written["metadata"]["timestamp"]
    text = json.dumps(written, indent=1, sort_keys=True) + "\n"
    if wrong := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise ValueError(f"the SBOM of {image} is not CycloneDX: {wrong}")
    return text


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for each in IMAGES:
        (folder / f"{each}.cdx.json").write_text(sbom(each))
