"""What a text says, in one line: from markdown to plain text, and to a summary made of its own words.

Owns: plain inline text, the reading of markdown into blocks, sentences, the summary that is made without a
model.
Must never: open a file, know what a node or a source is.

Sections: plain inline text · blocks · sentences · summary.

Invariants
- A summary that is made here satisfies the summary rule: one line, at most 60 tokens and 240 characters.
- Words of a code span stay as they are written.
"""

from __future__ import annotations

import html
import re
from typing import Iterator

import forest

# ------------------------------------------------------------------------------------------ plain inline text

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.S)
_PIECES = r"\{%.{0,300}?%\}|\{\{.{0,300}?\}\}|\\.|\([^\s()]*\)"  # template tags, escapes, brackets in pairs
TARGET = rf"<[^<>\n]*>|(?:{_PIECES}|[^\s()\\<{{])(?:{_PIECES}|[^\s()\\])*"
TEXT = r"(?:[^\[\]\\]|\\.|\[[^\[\]]*\])*"
LINK_TITLE = r"(?:\s+(?:\"[^\"]*\"|'[^']*'|\([^()]*\)))?"
WIKI = re.compile(r"\[\[([^\[\]|#\n]*)(#[^\[\]|\n]*)?(?:\\?\|([^\[\]\n]*))?\]\]")
_TAIL = rf"(?:\(\s*(?:{TARGET})?{LINK_TITLE}\s*\)|\[[^\[\]]*\])"
_LINK = re.compile(rf"\[({TEXT})\]{_TAIL}", re.S)
_IMAGE = re.compile(rf"!\[{TEXT}\]{_TAIL}|!\[\[[^\[\]\n]*\]\]", re.S)
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>|<!--.*?-->", re.S)
_AUTOLINK = re.compile(r"<((?:https?|mailto):[^<>\s]+|[^<>\s@]+@[^<>\s@]+)>")
_TEMPLATE = re.compile(r"\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}|\{[:.][^{}\n]*\}", re.S)
_TEMPLATE_WORD = re.compile(r"\{%-?\s*\w+\s+[\"']([\w#-]+)[\"']\s*-?%\}")
_FOOTNOTE = re.compile(r"\[\^[^\]\s]+\]")
_BOLD = re.compile(r"(\*\*|__|~~)(?=\S)(.+?)(?<=\S)\1", re.S)
_MARKS = re.compile(r"[*_]+")
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
_KEPT = re.compile("\x00(\\d+)\x00")


def one_line(text: str, limit: int) -> str:
    """`text` on one line without control characters, cut at `limit` characters."""
    return " ".join(CONTROLS.sub(" ", text).split())[:limit].strip()


def _unless_inside(marks: re.Match) -> str:
    """Emphasis marks open before a word or close behind one; inside a word or between blanks they are
    text."""
    before, after = (
        marks.string[max(0, marks.start() - 1) : marks.start()],
        marks.string[marks.end() : marks.end() + 1],
    )
    opens = after.strip() and not before.isalnum()
    closes = before.strip() and not after.isalnum()
    return "" if opens or closes else marks[0]


def plain(text: str) -> str:
    """Inline markdown as one line of text: links give their text; images, tags and emphasis marks go."""
    if not any(mark in text for mark in "`[<{*_&\\~"):
        return " ".join(text.split())
    kept: list[str] = []
    may_leave_gaps = "{" in text or "<" in text or "![" in text

    def keep(words: str) -> str:
        kept.append(words)
        return f"\x00{len(kept) - 1}\x00"

    if "`" in text or "\\" in text:
        text = _ESCAPED.sub(lambda m: keep(m[1]), CODE_SPAN.sub(lambda m: keep(m[2]), text))
    if "[" in text:
        text = _FOOTNOTE.sub("", _LINK.sub(r"\1", _IMAGE.sub("", text)))
        text = WIKI.sub(lambda m: m[3] or m[1], text)
    if "{" in text:
        text = _TEMPLATE.sub("", _TEMPLATE_WORD.sub(lambda m: m[1], text))
    if "<" in text:
        text = _TAG.sub("", _AUTOLINK.sub(r"\1", re.sub(r"<br\s*/?>", " ", text)))
    if "*" in text or "_" in text or "~" in text:
        text = _MARKS.sub(_unless_inside, _BOLD.sub(r"\2", text))
    text = _KEPT.sub(lambda m: kept[int(m[1])], html.unescape(text))
    text = " ".join(CONTROLS.sub(" ", text).split())
    if may_leave_gaps:
        text = re.sub(r"(?<=\w) +([,.;:!?)])(?=\s|$)", r"\1", re.sub(r"\(\s*\)", "", text))
    return text


# ---------------------------------------------------------------------------------------------- blocks

_DROPPED = re.compile(
    r"<!--.*?-->|\{%-?\s*comment\b.*?endcomment\s*-?%\}|\{#.*?#\}|\{%-?\s*(?:raw|endraw)\s*-?%\}"
    r"|<(style|script|nav|svg|template|select|head|button|form)\b.*?</\1\s*>|<h([1-6])\b.*?</h\2\s*>",
    re.S | re.I,
)
_HTML_TABLE = re.compile(r"<table\b.*?</table\s*>", re.S | re.I)
_ALERT = re.compile(r"\{%-?\s*alert\b.*?%\}(.*?)\{%-?\s*endalert\s*-?%\}", re.S)
_TAG_LINE = re.compile(r"^[ \t]*(?:\{%[^%]*%\}[ \t]*)+$", re.M)
_BLOCK_TAG = re.compile(
    r"</?(?:p|div|ul|ol|dl|dt|dd|section|article|aside|header|footer|details|summary|blockquote|figure"
    r"|main|center|hr)\b[^<>]*>",
    re.I,
)
ITEM = re.compile(r"^(\s*)(?:[-*+]|\d{1,9}[.)])\s+(?:\[[ xX]\]\s+)?(.*)$")
_RULE = re.compile(r"^ {0,3}(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,})$")
_DELIMITER = re.compile(r"^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)+\|?\s*$|^\s*\|\s*:?-+:?\s*\|\s*$")
_DEFINITION = re.compile(r"^ {0,3}\[[^\]]+\]:\s*\S")
_META_LINE = re.compile(
    r"\W{0,3}(?:authors?|written by|published|date|posted|(?:last )?(?:updated|modified|edited|reviewed)"
    r"(?: on)?|version|tags|category|copyright|licen[sc]e|autor(?:en|es)?|data|datum|fecha|auteur"
    r"|lizenz|licença|作者|著者|日期)\W{0,3}[:：]",
    re.I,
)
_QUOTE = re.compile(r"^\s{0,3}(?:>\s?)+(?:\[!\w+\]\s*$)?")
_COMMENT = re.compile(r"^\s*(?:#+!?|//+|--|;+|/\*+|\*|\"\"\"|''')\s*(.*?)\s*(?:\*/|\"\"\"|''')?$")


def _first_comment(lines: list[str]) -> str:
    for line in lines:
        match = _COMMENT.match(line)
        if match and sum(map(str.isalpha, match[1])) > 5:
            return one_line(match[1], 400)
    return ""


def _html_table(block: str) -> str:
    rows = len(re.findall(r"<tr\b", block, re.I))
    head = [plain(cell) for cell in re.findall(r"<th\b[^<>]*>(.*?)</th\s*>", block, re.S | re.I)]
    cells = head or [plain(cell) for cell in re.findall(r"<td\b[^<>]*>(.*?)</td\s*>", block, re.S | re.I)[:8]]
    return _table_line(list(filter(None, cells)), rows - bool(head))


def _table_line(cells: list[str], rows: int) -> str:
    return f"Table of {', '.join(cells)}; {rows} row{'' if rows == 1 else 's'}." if cells else ""


def _only_links(text: str) -> bool:
    """Whether a paragraph is a way to somewhere else and nothing more."""
    if "](" not in text or text.lstrip(" *_>")[:1] not in "[!<{":
        return False
    return not any(map(str.isalnum, plain(_LINK.sub("", _IMAGE.sub("", text)))))


class _Blocks:
    """The parts of a text that a summary may be made of.

    `flow` holds (kind, markdown) in order: `p` paragraph, `li` list item, `nav` a paragraph of links only,
    `meta` a line like `Author: …`.
    """

    def __init__(self):
        self.flow: list[tuple[str, str]] = []
        self.headings: list[str] = []
        self.table = self.comment = ""
        self._kind, self._parts = (
            "",
            [],
        )  # the open block; its kind may also be code, row, more (of a list item)
        self._rows: list[str] | None = None  # head and rows of the open table
        self._in_list = False

    def read(self, line: str) -> None:
        """Sort the next line into a paragraph, a list item, a heading or a table."""
        line = _QUOTE.sub("", line) if ">" in line[:8] else line
        bare = line.strip()
        if not bare:
            self.close()
        elif bare[0] == "#" and (heading := re.match(r"#{1,6}(?:\s+(.*?)\s*#*)?$", bare)):
            self.close()
            self._in_list = False
            self.headings.append(plain(heading[1] or ""))
        elif self._kind in ("", "p", "meta") and _META_LINE.match(bare):
            self._open("meta", line)
        elif self._kind == "p" and re.fullmatch(r" {0,3}(?:=+|-+)\s*", line):
            self.headings.append(plain(" ".join(self._parts)))
            self._kind, self._parts = "", []
        elif _RULE.match(line) or _DEFINITION.match(line):
            self.close()
        elif self._rows is not None:
            self._rows.append(line)
        elif _DELIMITER.match(line):
            self._rows = [self._parts.pop() if self._parts else line]
        elif bare[0] == "|" and self._kind != "p":
            self._open("row", line)
        else:
            self._read_text(line)

    def _read_text(self, line: str) -> None:
        item = ITEM.match(line)
        if item and (item[2] or self._kind != "p"):
            self._in_list = True
            self._open("li", item[2])
        elif self._kind:
            self._parts.append(line)
        elif line.startswith(("    ", "\t")) and not self._in_list:
            self._kind = "code"
            self.comment = self.comment or _first_comment([line])
        else:
            self._in_list = self._in_list and line[0] in " \t"
            self._open("more" if self._in_list else "p", line)

    def _open(self, kind: str, line: str) -> None:
        self.close()
        self._kind, self._parts = kind, [line]

    def close(self) -> None:
        """End the open block."""
        text = " ".join(self._parts)[:4000]  # a summary takes 240 characters
        if self._kind in ("p", "li", "meta") and text:
            self.flow.append(("nav" if self._kind == "p" and _only_links(text) else self._kind, text))
        if self._rows and not self.table:
            head = [plain(cell) for cell in self._rows[0].strip().strip("|").split("|")]
            self.table = _table_line(head, len(self._rows) - 1)
        self._kind, self._parts, self._rows = "", [], None


def _blocks(body: str) -> _Blocks:
    """Read at most the first 40,000 characters of `body`: no summary reaches further."""
    body = body[:40_000]
    blocks = _Blocks()
    for start, end in reversed(forest.fence_spans(body)):
        blocks.comment = _first_comment(body[start:end].split("\n")[1:]) or blocks.comment
        body = body[:start] + "\n\n" + body[end:]
    tables = _HTML_TABLE.findall(body)
    body = _HTML_TABLE.sub("\n\n", _DROPPED.sub("\n", body))
    asides = _ALERT.findall(body)  # a notice rarely says what the page is about: it comes last
    body = "\n\n".join([_ALERT.sub("\n\n", body), *asides])
    body = re.sub(r"<li\b[^<>]*>", "\n- ", _BLOCK_TAG.sub("\n\n", _TAG_LINE.sub("\n", body)), flags=re.I)
    for line in [*body.split("\n"), ""]:
        blocks.read(line)
    if tables and not blocks.table:
        blocks.table = _html_table(tables[0])
    return blocks


# ---------------------------------------------------------------------------------------------- sentences

_STOP = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s)|[。！？]+[」』）”]*")
_ABBREVIATIONS = frozenset(
    "e.g i.e dr mr mrs ms prof st vs cf al fig ca approx dept inc ltd jr sr z.b d.h u.a bzw usw vgl sra dra"
    " p.ex ex resp incl т.е т.д т.п и.о".split()
)


def sentences(text: str) -> Iterator[str]:
    """`text` (one line) cut into sentences."""
    begin = 0
    for stop in _STOP.finditer(text):
        if stop[0][0] == "." and _goes_on(text, begin, stop.start(), stop.end()):
            continue
        yield text[begin : stop.end()].strip()
        begin = stop.end()
    if rest := text[begin:].strip():
        yield rest


def _goes_on(text: str, begin: int, dot: int, end: int) -> bool:
    """Whether the dot at `dot` ends no sentence: behind an initial, an abbreviation, or inside a number."""
    word = text[begin:dot].rpartition(" ")[2].lstrip("([\"'“‘*").lower()
    after = text[end:].lstrip()[:1]
    if word in ("no", "nr", "art", "sec", "vol", "fig"):
        return after.isdigit()
    if word == "etc":
        return after.islower()
    if word in _ABBREVIATIONS or re.fullmatch(r"(?:[^\W\d_]\.)*[^\W\d_]", word):
        return True
    return bool(re.search(r"(?:^|\s)\d$", text[begin:dot])) and after.isdigit()


_PAIR_SCRIPT = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]"
)
_BARE = re.compile(
    r"(?:https?://|www\.|mailto:)\S+|[\w.+-]+@[\w.-]+|[\d\s./:,-]+"
    r"|(?:\w+ )?\d{1,2}(?:\.|st|nd|rd|th)?,? \w+,? \d{4}|\w+ \d{1,2},? \d{4}"
)
_OFF_TOPIC = re.compile(
    "|".join(
        (
            # contents
            r"(?:table of )?contents\b.{0,30}$|inhalt(?:sverzeichnis)?$|índice$|sumário$|目次|目录",
            r"on this page\b|in this (?:section|article|page)\s*:",
            # author, copyright, licence, cookies
            r"written by .{1,60}$|copyright\b|©|\(c\) |all rights reserved|licen[sc]ed under|spdx-",
            r"this (?:work|project|document|software) is licen[sc]ed",
            r"(?:the )?(?:mit|apache|bsd|gpl|gnu)\b.{0,40}licen[sc]e\b",
            r"this (?:web)?(?:site|page) uses cookies|we use cookies|by using this (?:web)?site",
            r"accept (?:all )?cookies",
            # navigation
            r"(?:jump|skip|go|back|return|continue|proceed|next|previous|prev|forward)(?: (?:up|back|on))?"
            r" (?:to|step|page|section|chapter|:)",
            r"(?:please )?see (?:the|our|a|also|this|below|above)\b",
            r"if you (?:still )?have (?:any |more )?questions\b",
            r"(?:next|previous|prev|home|menu|search|navigation|edit this page|read more|learn more"
            r"|click here|see also|zurück|weiter|voltar|próxim[oa]|anterior|siguiente)"
            r"\s*(?:[:»>←→|].*)?[.]?$",
            r"(?:still )?to ?do\b",
        )
    ),
    re.I,
)


def _weak(sentence: str, title: str) -> bool:
    """Whether a sentence says nothing about its page: used only where nothing else is there."""
    squeezed = "".join(filter(str.isalnum, sentence.casefold()))
    face = "".join(filter(str.isalnum, title.casefold()))
    if not squeezed or squeezed == face or (len(squeezed) > 15 and face.startswith(squeezed)):
        return True
    paired = len(_PAIR_SCRIPT.findall(sentence))
    words, whole = len(re.findall(r"\w+", sentence)), sentence[-1] in ".!?…。！？:："
    if words < (3 if whole else 5) and paired < 6:
        return True
    return bool(_BARE.fullmatch(sentence.rstrip(".")) or _OFF_TOPIC.match(sentence))


def _banned(sentence: str) -> bool:
    return sentence.strip().casefold().startswith(forest.BANNED_OPENINGS)


# ---------------------------------------------------------------------------------------------- summary

AIM_TOKENS = 50
MAX_CHARS = 240


def summarize(body: str, title: str, facts: str) -> str:
    """A summary of `body` made of its own first sentences.

    `title` is what the summary need not repeat, `facts` (kind and size) the last resort of a text without
    words.
    """
    blocks = _blocks(body)
    strong, weak = _told(blocks.flow, title)
    items = [] if strong else [item for item in _items_from(blocks.flow, 0, 60) if not _banned(item)]
    headings = [heading for heading in blocks.headings if heading and heading != title]
    listed = ["; ".join(item.rstrip(" .;,:") for item in group) for group in (items, headings)]
    for option in (strong, listed[:1], weak, [blocks.table], [blocks.comment], listed[1:]):
        told = [text for text in dict.fromkeys(option) if text and not _banned(text)]
        if told:
            return _fitted(told)
    return _fitted([f"{title}, {facts}, no text."])


def _told(flow: list[tuple[str, str]], title: str) -> tuple[list[str], list[str]]:
    """Sentences of the prose that say something, and the others. A lead-in takes its list along."""
    strong: list[str] = []
    weak: list[str] = []
    for i, (kind, text) in enumerate(flow):
        text = plain(text) if kind != "li" else ""
        if kind in ("nav", "meta"):
            weak.append(text)
        for sentence in sentences(text) if kind == "p" else ():
            lead_in = sentence.endswith((":", "：")) and text.endswith(sentence)
            items = _items_from(flow, i + 1) if lead_in else []
            if lead_in and items:
                sentence = _with_items(sentence, items)
            (weak if (lead_in and not items) or _weak(sentence, title) else strong).append(sentence)
            if sum(map(len, strong)) > MAX_CHARS:
                return strong, weak
    return strong, weak


def _items_from(flow: list[tuple[str, str]], start: int, most: int = 0) -> list[str]:
    """The list that begins at `start`; with `most` up to so many items wherever they stand."""
    items: list[str] = []
    for kind, text in flow[start:]:
        if kind == "li" and (item := plain(text)):
            items.append(item)
        elif not most and kind != "li":
            break
        if len(items) == (most or 60):
            break
    return items


def _with_items(lead_in: str, items: list[str]) -> str:
    """A lead-in with as many of its list items as a summary has room for."""
    told, room = lead_in, AIM_TOKENS
    for i, item in enumerate(items):
        longer = told + (" " if i == 0 else "; ") + item.rstrip(" .;,:")
        if i and (len(longer) > MAX_CHARS - 2 or not forest.fits(longer, room - 2)):
            return told + "; …"
        told = longer
    return told + "."


def _fitted(told: list[str]) -> str:
    """The first of `told` whole or cut, then what still fits."""
    summary = fit_summary(told[0]) or "…"
    if summary.endswith("…"):
        return summary
    for sentence in told[1:]:
        glue = " " if summary[-1] in ".!?…:)”\"'" else "" if summary[-1] in "。！？」』" else ". "
        longer = summary + glue + sentence
        if len(longer) > MAX_CHARS or not forest.fits(longer, AIM_TOKENS):
            break
        summary = longer
    return summary


def fit_summary(text: str) -> str | None:
    """`text` as a usable summary: one line, cut at a word with `…` past 60 tokens or 240 characters. None
    when it is blank or has an opening that the summary rule bans."""
    text = one_line(text, 4000)
    if not text or _banned(text):
        return None
    if len(text) <= MAX_CHARS and forest.fits(text, forest.SUMMARY_TOKENS):
        return text
    head = forest.clip(text[: MAX_CHARS - 1], forest.SUMMARY_TOKENS - 1).removesuffix("…")
    if text[len(head)] != " " and " " in head[-40:]:
        head = head.rpartition(" ")[0]
    return head.rstrip(" ,;:.–—-(") + "…"
