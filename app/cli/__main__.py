"""``python -m tokenmill.app.cli``: the command line where its script is not on the path."""

from . import main

main()
