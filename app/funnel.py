"""What the totals of a stream say to people: the share that is kept, tokens, and the funnel by step and reason.

In sentences, and as pictures: bars of characters for a terminal, and a PNG by matplotlib. Also which documents of a
trial people are shown: some of each kind, chosen evenly, with a beginning of the text.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappush, heapreplace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

import xxhash

from tokenmill.errors import InputError
from tokenmill.wire.totals import LANGUAGE, Amount, Totals

if TYPE_CHECKING:
    from matplotlib.axes import Axes

UNNAMED = ""
"""The step of a reason of which the totals do not say it."""


class FunnelRow(NamedTuple):
    """Documents that one step dropped for one reason."""

    step: str
    """Its label; `UNNAMED` where only the reason is known: without figures, and behind all steps."""
    reason: str
    documents: int
    text_bytes: int | None
    """As they came to the step; None where that is not known."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How much of the documents of one or several chains is kept."""

    totals: Totals
    padding: int = 0
    """In blocks and open blocks: what no document wrote."""
    seconds: float = 0.0
    """Between two moments, of ``timed_tokens``; 0 where they are not known."""
    timed_tokens: int = 0
    blocks: int = 0
    """Blocks that hold them, those that are open not counted; 0 where that is not known."""

    @property
    def documents(self) -> int:
        """Documents that came to the steps and were answered for."""
        return self.totals.kept + self.totals.filtered.total()

    @property
    def share(self) -> float:
        """Share of these that is kept, from 0 to 1; 0 without documents."""
        return self.totals.kept / self.documents if self.documents else 0.0

    @property
    def average_tokens(self) -> float:
        """Tokens of a kept document, with those that mark its begin and end; 0 without documents."""
        return self.totals.tokens / self.totals.kept if self.totals.kept else 0.0

    @property
    def efficiency(self) -> float:
        """Share of the blocks' tokens that are documents', from 0 to 1; 1 where nothing is padded."""
        places = self.totals.tokens + self.padding
        return self.totals.tokens / places if places else 1.0

    @property
    def packing(self) -> dict[str, float] | None:
        """What the packing does to documents, as shares from 0 to 1; None where the totals do not say it.

        ``padding_ratio`` is of the tokens in blocks, ``truncation_ratio`` of the documents (those that are longer than
        a block), ``concatenation_ratio`` of the blocks (those that hold several documents).
        """
        counted, places = self.totals.packing, self.totals.tokens + self.padding
        if not counted:
            return None
        return {
            "padding_ratio": self.padding / places if places else 0.0,
            "truncation_ratio": counted["cut"] / self.totals.kept if self.totals.kept else 0.0,
            "concatenation_ratio": counted["joined"] / self.blocks if self.blocks else 0.0,
        }

    @property
    def left_out(self) -> tuple[int, int]:
        """Tokens of kept documents that the packing puts into no block, and how many documents lose these."""
        return self.totals.packing["left_out"], self.totals.packing["shortened"]

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of documents a second, pauses included; None where that is not known."""
        return self.timed_tokens / self.seconds if self.seconds > 0 and self.timed_tokens else None

    @property
    def kept_bytes(self) -> int | None:
        """Bytes of the texts that all steps passed on; None where they are not counted."""
        return self.totals.figures.steps[-1].passed.size if self.totals.figures else None

    def funnel(self) -> list[FunnelRow]:
        """Return what was dropped: by step in the order of the recipe, the most frequent reasons of each first."""
        rows: list[FunnelRow] = []
        for step in self.totals.figures.steps:
            found = [FunnelRow(step.step, reason, *amount) for reason, amount in step.filtered.items()]
            rows += sorted(found, key=_rarity)
        named = self.totals.figures.filtered
        rest = {r: n - named.get(r, Amount()).documents for r, n in self.totals.filtered.items()}
        rows += sorted((FunnelRow(UNNAMED, r, n, None) for r, n in rest.items() if n), key=_rarity)
        return rows

    def lines(self) -> list[str]:
        """Return the figures as sentences that can be pasted."""
        totals = self.totals
        if not self.documents:
            return ["Data retention: no document has been counted yet"]
        lines = [
            f"Data retention: {_percent(self.share)} ({totals.kept:,} of {self.documents:,} documents)",
            f"Tokens kept: {totals.tokens:,}, on average {self.average_tokens:,.1f} a document",
        ]
        if self.padding:
            share = _percent(self.efficiency)
            lines.append(f"Efficiency: {share} of tokens in blocks are text, the other {self.padding:,} are padding")
        entered = totals.figures.entered
        if self.kept_bytes is not None and entered.size:
            share = _percent(self.kept_bytes / entered.size)
            lines.insert(1, f"Text retention: {share} ({self.kept_bytes:,} of {entered.size:,} bytes)")
        if self.packing is not None:
            padding, cut, joined = self.packing.values()
            lines.append(
                f"Packing: {_percent(padding, 2)} of tokens in blocks are padding, {_percent(cut, 2)} of documents are "
                f"longer than a block and cut, {_percent(joined)} of blocks hold several documents"
            )
        tokens, documents = self.left_out
        if tokens:
            share = _percent(tokens / (totals.tokens + tokens), 2)
            ends = f"the ends of {documents:,} documents that the packing shortens"
            lines.append(f"Left out: {share} of the documents' tokens ({tokens:,}), {ends}")
        if self.tokens_per_second is not None:
            speed = f"{self.tokens_per_second:,.0f} tokens a second"
            lines.append(f"From the first message to the last: {self.seconds:,.0f} s with all pauses, so {speed}")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types; what is not known is null."""
        return {
            "documents": self.documents,
            "kept": self.totals.kept,
            "share": self.share,
            "text_bytes_in": self.totals.figures.entered.size if self.totals.figures else None,
            "text_bytes_kept": self.kept_bytes,
            "tokens": self.totals.tokens,
            "average_tokens": self.average_tokens,
            "efficiency": self.efficiency,
            "tokens_per_second": self.tokens_per_second,
            "packing": self.packing,
            "left_out_tokens": self.left_out[0],
            "shortened_documents": self.left_out[1],
            "funnel": [row._asdict() for row in self.funnel()],
        }


def kept_line(totals: Totals) -> str:
    """Return the funnel in one line: ``kept 1,234 of 1,300 documents: 40 empty, 26 c4_quality.lorem_ipsum``."""
    retention = Retention(totals)
    dropped = ", ".join(f"{row.documents:,} {row.reason}" for row in sorted(retention.funnel(), key=_rarity))
    return f"kept {totals.kept:,} of {retention.documents:,} documents" + (f": {dropped}" if dropped else "")


def _percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def _rarity(row: FunnelRow) -> tuple[int, str]:
    return -row.documents, row.reason


BAR: Final = 40
"""Cells of the longest bar in a terminal: with labels and numbers, a line fits 80."""
LABEL: Final = 26
"""Cells of a label; a longer one moves its bar."""
EIGHTHS: Final = " ▏▎▍▌▋▊▉"
NOT_CARRIED: Final = str(None)
"""What figures call the language of documents that do not carry it."""

Bars: TypeAlias = Sequence[tuple[str, int]]


def funnel_bars(retention: Retention) -> Bars:
    """Return a label and a number of documents for what came, for each reason, and for what is kept."""
    dropped = [(row.reason, row.documents) for row in retention.funnel()]
    return [("documents", retention.documents), *dropped, ("kept", retention.totals.kept)]


def length_bars(lengths: Counter[int]) -> Bars:
    """Return each power of two from the shortest to the longest document, and how many documents it has."""
    if not +lengths:
        return []
    return [(_power(key), lengths[key]) for key in range(min(+lengths), max(+lengths) + 1)]


def terminal_bars(title: str, bars: Bars) -> list[str]:
    """Return the bars as lines of text, each with its label and number."""
    most = max((number for _, number in bars), default=0)
    width = max((len(f"{number:,}") for _, number in bars), default=0)
    return [title, *(f"  {label:<{LABEL}} {number:>{width},} {_bar(number, most)}".rstrip() for label, number in bars)]


def terminal_plot(retention: Retention) -> list[str]:
    """Return funnel and histograms as lines of text; a histogram only where lengths are counted."""
    lines, figures = terminal_bars("documents", funnel_bars(retention)), retention.totals.figures
    for what, lengths in (("tokens", figures.token_lengths), ("bytes", figures.text_lengths)):
        lines += terminal_bars(f"{what} a document", length_bars(lengths)) if +lengths else []
    return lines


def write_png(path: Path, retentions: Mapping[str, Retention]) -> None:
    """Write a PNG with a row for each name: its funnel and lengths. Raises InputError where that cannot be."""
    import matplotlib as mpl  # noqa: PLC0415 - an extra

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    rows = len(retentions)
    figure, axes = plt.subplots(rows, 2, figsize=(12, 4 * rows), squeeze=False, layout="constrained")
    for row, (name, retention) in zip(axes, retentions.items(), strict=True):
        _draw_bars(row[0], f"{name}: {retention.lines()[0].removeprefix('Data retention: ')}", funnel_bars(retention))
        lengths = length_bars(retention.totals.figures.token_lengths)
        if lengths:
            _draw_bars(row[1], "tokens a document", lengths)
        else:
            row[1].set_axis_off()
    try:
        figure.savefig(path, dpi=150, format="png")  # sharp in a paper's column
    except OSError as error:
        raise InputError(f"--plot {path} cannot be written ({error.strerror}): name a file in a directory") from error
    finally:
        plt.close(figure)


def _draw_bars(axes: "Axes", title: str, bars: Bars) -> None:
    labels, numbers = [label for label, _ in bars], [number for _, number in bars]
    drawn = axes.barh(range(len(bars)), numbers, color="#4c72b0")
    axes.bar_label(drawn, [f"{number:,}" for number in numbers], padding=3, fontsize=8)
    axes.set_yticks(range(len(bars)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_title(title, fontsize=10)


def _power(key: int) -> str:
    low, high = 1 << key, (1 << key + 1) - 1
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _bar(number: int, most: int) -> str:
    eighths = round(number * BAR * 8 / most) if most else 0
    full, rest = divmod(max(eighths, int(number > 0)), 8)
    return "█" * full + EIGHTHS[rest].strip()


def languages_line(languages: Iterable[tuple[str, int]]) -> str:
    """Return languages with their documents, the most frequent first; where no document says one, how it would."""
    found = sorted(languages, key=lambda one: (-one[1], one[0]))
    if [name for name, _ in found] == [NOT_CARRIED]:
        return f'not carried; documents say theirs with metadata_fields = ["{LANGUAGE}"]'
    return ", ".join(f"{language} {number:,}" for language, number in found)


SHOWN_CHARACTERS: Final = 400
"""Of a text: five lines of a terminal."""
LEAD_CHARACTERS: Final = 60
"""Characters in front of the first one that a step changed: enough to recognise the place."""
CUT: Final = "…"

T = TypeVar("T")


class TriedDocument(NamedTuple):
    """A document, or what could not become one."""

    place: str
    detail: str
    """The numbers that decided; of a kept document, its tokens."""
    text: str
    """Its beginning, as it came to the step that dropped it; of a changed one, from shortly before the change on."""
    after: str | None = None
    """Of a changed document, the same part as the step left it."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        return {name: value for name, value in self._asdict().items() if value is not None}


class EvenSample(Generic[T]):
    """At most ``size`` of many numbered items, those whose numbers have the smallest hashes: the same in any order.

    Every part of the input has its share, and a caller that asks `wants` first makes no item that would be left out.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._heap: list[tuple[int, int, T]] = []

    def wants(self, number: int) -> bool:
        """Return whether the item of this number would be in the sample now."""
        return len(self._heap) < self._size or (self._size > 0 and -_rank(number) > self._heap[0][0])

    def add(self, number: int, item: T) -> None:
        """Take an item in, in place of the one with the largest hash if there are enough; numbers are unique."""
        entry = (-_rank(number), number, item)
        if len(self._heap) < self._size:
            heappush(self._heap, entry)
        elif self._size and entry > self._heap[0]:
            heapreplace(self._heap, entry)

    def items(self) -> list[T]:
        """Return the sample in the order of the numbers."""
        return [item for _, _, item in sorted(self._heap, key=lambda entry: entry[1])]


def beginning_of(text: str, characters: int = SHOWN_CHARACTERS) -> str:
    """Return at most so many characters of a text, with a sign where something is left out."""
    return text if len(text) <= characters else f"{text[:characters]}{CUT}"


def where_they_differ(before: str, after: str) -> tuple[str, str]:
    """Return the same part of two texts, from a little before the first difference on."""
    shorter = min(len(before), len(after))
    equal = bisect_left(range(shorter), True, key=lambda at: before[: at + 1] != after[: at + 1])
    start = max(0, equal - LEAD_CHARACTERS)
    sign = CUT if start else ""
    return sign + beginning_of(before[start:]), sign + beginning_of(after[start:])


def _rank(number: int) -> int:
    return xxhash.xxh3_64_intdigest(number.to_bytes(8, "little"))
