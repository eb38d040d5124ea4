"""``tokenmill adopt``: a copied or moved store gets an identity of its own."""

import typer

from tokenmill.store import Store

from ..settings import Settings
from .options import examples, with_settings
from .output import AsJson, say, show, show_json


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("adopt", epilog=examples("tokenmill adopt --store /mnt/copy"))(with_settings(adopt, "store"))


def adopt(settings: Settings, *, as_json: AsJson = False) -> None:
    """Give the store, a copy or one that was moved, a new identity, so that a segment worker may go on with it here.

    Its consumer group is named after the identity: a copy with the old one would share the original's partitions. What
    the store holds stays as it is. Not for a store that another process writes to.
    """
    store = Store.adopt(settings.store)
    if as_json:
        show_json({"store": store.path, "id": store.id})
        return
    show(store.id)
    say(f"{store.path} belongs here now; start a segment worker, and it goes on where the store ends")
