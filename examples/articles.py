"""Publish each article of a feed once: extract its text, summarise it, write a page, renew the index.

    python examples/articles.py examples/data/feed.xml --out ~/reading [--db PATH]

Run it from cron as often as you like. An article is a run with the key `article:<id>`, and
`reuse="after_failure"` keeps the key of a run that completed: an article that was published is skipped for
ever, one that failed is tried again, and one that was cut off goes on where it was. The feed is a file on
this machine: let `curl` fetch it.
"""

from __future__ import annotations

import argparse
import contextlib
import email.utils
import fcntl
import hashlib
import html
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin, urlsplit
from xml.etree import ElementTree

from durable_cli import Abort, Context, Durable, DurableError, workflow

ATOM = "{http://www.w3.org/2005/Atom}"
RSS_CONTENT = "{http://purl.org/rss/1.0/modules/content/}encoded"
XML_BASE = "{http://www.w3.org/XML/1998/namespace}base"
MAX_FEED_BYTES = 16 * 1024 * 1024
WORDS_A_MINUTE = 220
LEAD_CHARACTERS = 280


@dataclass(frozen=True)
class Article:
    """The input: one entry of a feed, and the folder of its page. `summary` and `content` may be HTML."""

    id: str
    title: str
    link: str
    summary: str
    content: str
    published: str  # as 2026-11-29T07:30:00+00:00, or "" where the feed does not say
    folder: str


@dataclass(frozen=True)
class Summary:
    """What a reader wants to know before reading."""

    words: int
    minutes: int
    lead: str


@workflow(reuse="after_failure", on_duplicate="use_existing")
def process_article(ctx: Context, article: Article) -> str:
    text = ctx.run("extract", extract, article)
    summary = ctx.run("summarise", summarise, text)
    page = ctx.run("publish", publish, article, text, summary)
    ctx.run("index", renew_index, article.folder)
    return page


# -- the steps -----------------------------------------------------------------------------------------------


def extract(article: Article) -> str:
    """The text of an article, its paragraphs apart by an empty line; of its summary if it has no content."""
    for source in (article.content, article.summary):
        if text := text_of(source):
            return text
    raise Abort(f"the article {article.id} has no text")


def summarise(text: str) -> Summary:
    """Count, and take whole sentences from the beginning while they fit."""
    words = len(text.split())
    sentences = re.split(r"(?<=[.!?…])\s+", " ".join(text.split()))
    lead = sentences[0]
    for sentence in sentences[1:]:
        if len(lead) + 1 + len(sentence) > LEAD_CHARACTERS:
            break
        lead += " " + sentence
    if len(lead) > LEAD_CHARACTERS:
        lead = lead[: LEAD_CHARACTERS - 1].rsplit(" ", 1)[0] + "…"
    return Summary(words=words, minutes=max(1, round(words / WORDS_A_MINUTE)), lead=lead)


def publish(article: Article, text: str, summary: Summary) -> str:
    """Write the page of an article; returns its path. Written again, it is the same file."""
    e = html.escape
    paragraphs = "\n".join(f"<p>{e(p)}</p>" for p in text.split("\n\n"))
    # What a feed says is somebody else's text: all of it is escaped, and only web addresses become links.
    is_web = urlsplit(article.link).scheme in ("http", "https")
    origin = f'<p><a href="{e(article.link)}">The original</a></p>' if is_web else ""
    page = PAGE.format(
        title=e(one_line(article.title) or "Untitled"),
        published=e(article.published),
        lead=e(summary.lead),
        facts=f"{summary.words} words, {summary.minutes} min",
        body=f"{paragraphs}\n{origin}",
    )
    path = Path(article.folder) / page_name(article)
    write_whole(path, page)
    return str(path)


def renew_index(folder: str) -> int:
    """Write `index.html` anew from the pages that are there, newest first; returns their number.

    Made from the pages and not added to, so that an index written twice or by two processes is the same.
    """
    with alone_in(folder):
        pages: list[tuple[str, str, Head]] = []
        for path in Path(folder).glob("*.html"):
            head = Head(path.read_text("utf-8"))
            if path.name != "index.html" and "published" in head.meta:
                pages.append((head.meta["published"], path.name, head))
        pages.sort(key=lambda page: page[:2], reverse=True)
        rows = "\n".join(
            f'<li><a href="{html.escape(name)}">{html.escape(head.title)}</a> '
            f"{html.escape(date[:10])}<br>{html.escape(head.meta.get('description', ''))}</li>"
            for date, name, head in pages
        )
        write_whole(Path(folder) / "index.html", INDEX.format(rows=rows))
    return len(pages)


PAGE = """<!doctype html>
<html><head><meta charset="utf-8"><title>{title}</title>
<meta name="published" content="{published}"><meta name="description" content="{lead}"></head>
<body><h1>{title}</h1>
<p><em>{facts}</em></p>
{body}
</body></html>
"""

INDEX = """<!doctype html>
<html><head><meta charset="utf-8"><title>Articles</title></head>
<body><h1>Articles</h1>
<ul>
{rows}
</ul>
</body></html>
"""


def page_name(article: Article) -> str:
    """The title for people, a digest of the id for uniqueness: an id may hold any character."""
    slug = re.sub(r"[^a-z0-9]+", "-", article.title.lower()).strip("-")[:60].strip("-")
    return f"{slug or 'article'}-{digest(article.id)[:10]}.html"


def write_whole(path: Path, text: str) -> None:
    """Put a text under a name: afterwards the name has all of it, or what it had before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def alone_in(folder: str) -> Iterator[None]:
    """Wait until no other process renews the index of this folder."""
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


class Head(HTMLParser):
    """Title and `meta` of a page of ours."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.title = ""
        self.meta: dict[str, str] = {}
        self._tag = ""
        self.feed(page.partition("</head>")[0])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag = tag
        named = {name: value or "" for name, value in attrs}
        if tag == "meta" and "name" in named:
            self.meta[named["name"]] = named.get("content", "")

    def handle_data(self, data: str) -> None:
        if self._tag == "title":
            self.title += data.strip("\n")


# -- text of HTML --------------------------------------------------------------------------------------------


class TextOnly(HTMLParser):
    """The text of a piece of HTML, with an empty line where a block ends."""

    BLOCKS = frozenset(
        ["p", "div", "br", "li", "ul", "ol", "h1", "h2", "h3", "h4", "h5", "h6", "tr", "pre", "blockquote"]
    )
    UNSEEN = frozenset(["script", "style"])

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self._unseen = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._unseen += tag in self.UNSEEN
        if tag in self.BLOCKS:
            self.pieces.append("\0")

    def handle_endtag(self, tag: str) -> None:
        self._unseen -= tag in self.UNSEEN and self._unseen > 0
        if tag in self.BLOCKS:
            self.pieces.append("\0")

    def handle_data(self, data: str) -> None:
        if not self._unseen:
            self.pieces.append(data.replace("\0", ""))


def text_of(source: str) -> str:
    parser = TextOnly()
    parser.feed(source)
    parser.close()
    blocks = (one_line(block) for block in "".join(parser.pieces).split("\0"))
    return "\n\n".join(filter(None, blocks))


def one_line(text: str) -> str:
    return " ".join(text.split())


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# -- the feed ------------------------------------------------------------------------------------------------


class BadFeed(Exception):
    """The file is not a feed that can be read."""


class NoDoctype(ElementTree.TreeBuilder):
    """Refuses a document type: feeds need none, and its entities are how a small file becomes a huge one."""

    def doctype(self, name: str, public: str | None, system: str | None) -> None:
        raise BadFeed("it declares a document type (<!DOCTYPE ...>), which a feed does not need")


def read_feed(path: Path, folder: Path) -> list[Article]:
    """All entries of an Atom or RSS 2.0 file, the last one first. Raises BadFeed and OSError."""
    with open(path, "rb") as file:
        data = file.read(MAX_FEED_BYTES + 1)
    if len(data) > MAX_FEED_BYTES:
        raise BadFeed(f"it is larger than {MAX_FEED_BYTES // 2**20} MiB")
    parser = ElementTree.XMLParser(target=NoDoctype())
    try:
        parser.feed(data)
        root = parser.close()
    except ElementTree.ParseError as error:
        raise BadFeed(f"it is not XML: {error}") from error
    if root.tag == f"{ATOM}feed":
        base = root.get(XML_BASE, "")
        articles = [atom_entry(entry, base, str(folder)) for entry in root.iter(f"{ATOM}entry")]
    elif root.tag == "rss":
        articles = [rss_item(item, str(folder)) for item in root.iter("item")]
    else:
        raise BadFeed(f"it begins with <{root.tag}>; <feed> (Atom) or <rss> (RSS 2.0) is expected")
    return list(reversed(articles))


def atom_entry(entry: ElementTree.Element, base: str, folder: str) -> Article:
    links = [e.get("href", "") for e in entry.findall(f"{ATOM}link") if e.get("rel", "alternate") == "alternate"]
    link = urljoin(base, links[0]) if links else ""
    return Article(
        id=child_text(entry, f"{ATOM}id") or link,
        title=text_of(atom_html(entry.find(f"{ATOM}title"))),
        link=link,
        summary=atom_html(entry.find(f"{ATOM}summary")),
        content=atom_html(entry.find(f"{ATOM}content")),
        published=child_text(entry, f"{ATOM}published") or child_text(entry, f"{ATOM}updated"),
        folder=folder,
    )


def atom_html(element: ElementTree.Element | None) -> str:
    """An Atom text as HTML, whatever its type: text, html (escaped) or xhtml (elements)."""
    if element is None:
        return ""
    kind = element.get("type", "text")
    if kind == "xhtml":
        for part in element.iter():
            part.tag = part.tag.rpartition("}")[2]  # the names as HTML knows them
        return "".join(ElementTree.tostring(part, encoding="unicode") for part in element)
    text = element.text or ""
    return text if kind == "html" else html.escape(text)


def rss_item(item: ElementTree.Element, folder: str) -> Article:
    link = child_text(item, "link")
    return Article(
        id=child_text(item, "guid") or link,
        title=text_of(child_text(item, "title")),
        link=link,
        summary=child_text(item, "description"),
        content=child_text(item, RSS_CONTENT),
        published=rss_date(child_text(item, "pubDate")),
        folder=folder,
    )


def rss_date(text: str) -> str:
    try:
        return email.utils.parsedate_to_datetime(text).isoformat()
    except ValueError:
        return ""


def child_text(element: ElementTree.Element, tag: str) -> str:
    return (element.findtext(tag) or "").strip()


# -- the program ---------------------------------------------------------------------------------------------


def article_key(article_id: str) -> str:
    """`article:<id>`. A key has at most 255 bytes and durable never shortens one; an id that is longer is
    named by its digest here, at its producer, which is as stable as the id.
    """
    key = f"article:{article_id}"
    return key if len(key.encode()) <= 255 else f"article:sha256:{digest(article_id)}"


def process(durable: Durable, article: Article) -> str:
    """Process one article unless it was. Prints and returns what became of it."""
    done = durable.execute(process_article, article, key=article_key(article.id))
    outcome = str(done.start.outcome) if done.start is not None else "resumed"
    status = str(done.run.status)
    if status == "completed":
        word = {"created": "new", "existing": "skipped"}.get(outcome, outcome)
    else:
        word = "failed" if done.run.finished else "busy"
    why = f": {done.run.error.message}" if word == "failed" and done.run.error is not None else ""
    print(f"{word:8} {article.title or article.id} [{done.run.id}]{why}")
    return word


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0, 1 when an article failed, 2 when the feed cannot be read."""
    parser = argparse.ArgumentParser(description="Publish each article of a feed once.")
    parser.add_argument("feed", type=Path, help="an Atom or RSS 2.0 file")
    parser.add_argument("--out", type=Path, required=True, help="the folder for the pages")
    parser.add_argument("--db", type=Path, help="durable's database, if not the usual one")
    options = parser.parse_args(argv)
    try:
        articles = read_feed(options.feed, options.out.expanduser().resolve())
    except (OSError, BadFeed) as error:
        print(f"error: {options.feed} cannot be read: {error}", file=sys.stderr)
        return 2
    words: list[str] = []
    try:
        with Durable(options.db) as durable:
            for article in articles:
                if article.id:
                    words.append(process(durable, article))
                else:
                    print(f"error: {article.title!r} has neither id nor link", file=sys.stderr)
                    words.append("failed")
    except DurableError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return error.exit_status
    counts = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(["new", "skipped", *words]))
    print(counts)
    return 1 if "failed" in words else 0


if __name__ == "__main__":
    sys.exit(main())
