"""A Faust app that hands its records on as documents: articles from one topic, their text to another.

    BOOTSTRAP_SERVERS=127.0.0.1:9092 python examples/faust_articles.py worker

A `faust.Record` with a field ``content: str`` is a document as it is; its ``id``, if it has one, is the document's.
"""

# ruff: noqa: INP001 - a script, no part of a package

import os

import faust
from faust.types import StreamT

app = faust.App(
    "articles-to-text",
    broker="aiokafka://" + os.environ.get("BOOTSTRAP_SERVERS", "127.0.0.1:9092"),
    # For a cluster with logins: broker_credentials=faust.SASLCredentials(...)
    web_enabled=False,
    topic_allow_declare=False,  # topics belong to those who made them
    topic_disable_leader=True,
)


class Article(faust.Record, serializer="json"):
    """What is there already."""

    number: int
    title: str
    body: str


class Document(faust.Record, serializer="json"):
    """What TokenMill takes."""

    id: str
    content: str


articles = app.topic(os.environ.get("ARTICLES", "articles"), value_type=Article)
documents = app.topic(os.environ.get("RAW_TEXT", "raw-text"), value_type=Document)


@app.agent(articles)
async def hand_on(stream: StreamT[Article]) -> None:
    """Send each article's text; an article counts as done when Kafka has its document."""
    async for article in stream:
        document = Document(id=f"article/{article.number}", content=f"{article.title}\n\n{article.body}")
        sent = await documents.send(key=document.id, value=document)
        await sent


if __name__ == "__main__":
    app.main()
