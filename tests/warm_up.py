"""What the processes of a test run would otherwise make several times at once, made once: ``python -m tests.warm_up``.

Whatever cannot be made says why, and is left to the tests, which pass without it.
"""

import subprocess
import sys
from typing import Final

KERNELS: Final = ("-c", "from tokenmill.stages.curation.choosing import compile_kernels; compile_kernels()")
"""Machine code of filters: half a minute, as long as the other two together."""
JAVA: Final = ("-m", "tests.java_cache")
"""Kafka's classes as Java keeps them."""
BYTECODE: Final = ("-m", "pytest", "--collect-only", "--quiet", "-p", "no:cacheprovider")
"""All modules, and the tests as pytest rewrites them."""


def main() -> None:
    """Make them, side by side; all that can be made is there on return."""
    made = [subprocess.Popen([sys.executable, *what], stdout=subprocess.DEVNULL) for what in (KERNELS, JAVA, BYTECODE)]
    for process in made:
        process.wait()


if __name__ == "__main__":
    main()
