"""What the process has loaded that all workers of tests are forks of, and their side processes; imported only there.

That is all that a worker loads until it has its partitions, what Faust loads late included. None of it starts a thread,
which a fork would be without.
"""

import inspect

import crc32c
import faust.app.router
import faust.assignor.partition_assignor
import faust.events
import faust.fixups.django
import faust.tables.manager
import faust.topics
import faust.transport.utils
import faust.windows

import tokenmill.app.cli.workers
import tokenmill.app.mill.app
import tokenmill.app.segments.app
import tokenmill.app.tools.pack.millers
import tokenmill.app.tools.verify.partition_check
from tokenmill.app.kafka.fastpath import fetched_records, receive_buffers, send_buffers
from tokenmill.processes import keep_loaded

# Python looks all modules through when Faust asks for one by its file; it does so once.
inspect.getmodule(inspect.currentframe())
# A collection in a fork would write to each object, and so copy all of this.
keep_loaded()
