"""What became of documents, as every command says it: sentences, what dropped them by step and reason, and examples."""

from collections.abc import Iterable, Iterator, Mapping

from ..funnel.retention import Retention, TriedDocument, beginning_of, languages_line
from ..tables import ShownTable
from .output import LINE_CHARACTERS, show, show_table


def show_figures(retention: Retention, name: str = "", tokens: Mapping[str, int] | None = None) -> None:
    """Show what is kept, and what dropped the rest; ``tokens``: what each reason dropped would have had."""
    languages = [(language, amount.documents) for language, amount in retention.totals.figures.languages.items()]
    lines = [*retention.lines(), *([f"Languages: {languages_line(languages)}"] if languages else [])]
    for line in ("", f"{name}:", *(f"  {line}" for line in lines)) if name else lines:
        show(line)
    table = funnel_table(retention, tokens)
    if table.rows:
        show("")
        show_table(table)


def funnel_table(retention: Retention, tokens: Mapping[str, int] | None = None) -> ShownTable:
    """Return a row for each reason for which documents were dropped, and for each of dead letters."""
    columns: tuple[str, ...] = ("dropped by", "reason", "documents", "share", "bytes of text", "tokens")
    columns = columns[: 5 if tokens is None else 6]
    rows: list[tuple[object, ...]] = []
    for row in retention.funnel():
        counted = () if tokens is None else (tokens[row.reason],)
        share = f"{row.documents / retention.documents:.1%}"
        rows.append((row.step or "-", row.reason, row.documents, share, row.text_bytes, *counted))
    for reason, number in (+retention.totals.dead_lettered).most_common():
        rows.append(("dead letter", reason, number, *[None] * (len(columns) - 3)))
    return ShownTable(columns, rows)


def example_lines(title: str, documents: Iterable[TriedDocument], *, whole: bool) -> Iterator[str]:
    """Yield a title, and below it documents, each with its place, the numbers that decided, and its text's beginning.

    ``whole``: as much of the text as was kept for this, and not one line.
    """
    yield title
    for one in documents:
        yield f"  {one.place}{f'  {one.detail}' if one.detail else ''}"
        texts = [("", one.text)] if one.after is None else [("- ", one.text), ("+ ", one.after)]
        for sign, text in texts:
            if text:
                yield f"    {sign}{text if whole else beginning_of(text, LINE_CHARACTERS)}"
