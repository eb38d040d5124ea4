"""What the process has loaded that all workers of tests are forks of, and their side processes; imported only there.

That is all that a worker loads until it has its partitions, what Faust loads late included. None of it starts a thread,
which a fork would be without.
"""

import inspect
from importlib import import_module
from typing import Final

from tokenmill.app.processes import keep_loaded

NAMES: Final = (
    "tokenmill.app.cli.workers",
    "tokenmill.app.cli.serving",
    "tokenmill.app.mill.app",
    "tokenmill.app.segments.app",
    "tokenmill.app.kafka.fastpath",
    "tokenmill.app.tools.pack.mill_processes",
    "tokenmill.app.tools.verify.partition_check",
    "crc32c",
    "faust.app.router",
    "faust.assignor.partition_assignor",
    "faust.events",
    "faust.fixups.django",
    "faust.tables.manager",
    "faust.topics",
    "faust.transport.utils",
    "faust.windows",
)

for name in NAMES:
    import_module(name)
# Python looks all modules through when Faust asks for one by its file; it does so once.
inspect.getmodule(inspect.currentframe())
# A collection in a fork would write to each object, and so copy all of this.
keep_loaded()
