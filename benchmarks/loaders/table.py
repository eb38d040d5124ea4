"""What was measured of loaders, on the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def print_speeds(cells: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print millions of tokens a second by loader and cell, and how many times as fast TokenMill is."""
    table = Table(title="million tokens a second (TokenMill is so many times as fast)", title_justify="left")
    table.add_column("", no_wrap=True)
    for cell in cells:
        order = "shuffled" if cell["shuffle"] else "in order"
        kind = "int64" if cell["wide"] else "as stored"
        cache = "cold, by clock" if cell["cold"] else "warm, by core"
        table.add_column(f"{order}\n{kind}\n{cache}", justify="right")
    for name in cells[0]["tokens_per_second"] | cells[-1]["tokens_per_second"] | cells[2]["tokens_per_second"]:
        table.add_row(name, *(_shown(cell, name) for cell in cells))
    console.print(table)


def _shown(cell: Mapping[str, Any], name: str) -> str:
    found, ratio = cell["tokens_per_second"].get(name), cell["tokenmill_to"].get(name)
    if found is None:
        return ""
    if name == "tokenmill-unchecked" and cell["unchecked_to_limit"]:
        return f"{found['median'] / 1e6:,.0f} ({cell['unchecked_to_limit']:,.2f} of the limit)"
    return f"{found['median'] / 1e6:,.0f}" + (f" ({ratio:,.2f})" if ratio else "")


def print_large(sizes: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print what stores of different sizes cost."""
    table = Table(title="TokenMill, by the size of the store", title_justify="left")
    table.add_column("")
    for size in sizes:
        table.add_column(f"{size['blocks']:,} blocks", justify="right")
    names = [name for name in (sizes[0] if sizes else {}) if name != "blocks"]
    for name in names:
        table.add_row(name.replace("_", " "), *(f"{size[name]:,}" for size in sizes))
    if sizes:
        console.print(table)


def print_shapes(shapes: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print what stores of an odd shape cost."""
    table = Table(title="TokenMill, by the shape of the store", title_justify="left")
    table.add_column("")
    for shape in shapes:
        table.add_column(f"{shape['store']}\n{'checked' if shape['check'] else 'unchecked'}", justify="right")
    for name in [name for name in (shapes[0] if shapes else {}) if name not in {"store", "check"}]:
        table.add_row(name.replace("_", " "), *(f"{shape[name]:,}" for shape in shapes))
    if shapes:
        console.print(table)


def print_batch_sizes(cells: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print what batches of other sizes cost, and the share of what numpy alone does."""
    title = "million tokens a second of one core (share of the limit, and of the limit with a CRC and two buffers)"
    table = Table(title=title, title_justify="left")
    for name in ("batch", "as stored, checked", "int64"):
        table.add_column(name, justify="right")
    for cell in cells:
        shown = (
            f"{one['tokens_per_second'] / 1e6:,.0f} ({one['to_limit']:.2f}, {one['to_limit_with_crc']:.2f})"
            for one in (cell["rows"], cell["int64"])
        )
        table.add_row(f"{cell['batch_size']} x {cell['sequence_length']:,}", *shown)
    console.print(table)


def print_gpu(found: Mapping[str, Any], console: Console) -> None:
    """Print what a GPU gets, and how much longer steps are than with a batch that is there."""
    title = (
        f"on a GPU: MB a second (share of pinned copies), and what steps of {found['step_seconds'] * 1e3:.0f} ms wait"
    )
    table = Table(title=title, title_justify="left")
    for name in ("batch", "form", "alone", "longer", "longer, each loss read", "loop waits", "device waits"):
        table.add_column(name, justify="right")
    for size in found["sizes"]:
        for name, cell in ((name, cell) for name, cell in size.items() if isinstance(cell, dict) and "longer" in cell):
            alone = f"{cell['bytes_per_second'] / 1e6:,.0f} ({cell['share_of_bandwidth']:.3f})"
            shares = ("longer", "longer_where_each_loss_is_read", "wait_ratio", "device_wait_ratio")
            batch = f"{size['batch_size']} x {size['sequence_length']:,}"
            table.add_row(batch, name, alone, *(f"{cell[share]:.3%}" for share in shares))
    console.print(table)


def print_following(found: Mapping[str, Any], console: Console) -> None:
    """Print what a reader of a growing store costs, and how late it is."""
    late = {name: f"{seconds * 1e3:.0f} ms" for name, seconds in found["era_to_batch_seconds"].items()}
    console.print(f"a reader that has caught up takes {found['idle_cores']:.2%} of a core")
    console.print(f"an era on the disk is a batch in the loop after {late['median']} (at most {late['max']})")
