"""A browser's reading of a page, as far as the tests need."""

import re
from collections import Counter
from html.parser import HTMLParser

_VOID = {"meta", "br", "link", "img", "hr"}


class Page(HTMLParser):
    """Tags with their attributes, ids and text of a page; it asserts that every tag is closed in turn."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.source = source
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(source)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """Attributes of every `tag`."""
        return [attrs for name, attrs in self.tags if name == tag]

    def repeated_ids(self) -> list[str]:
        """Ids that stand on more than one element."""
        counts = Counter(str(attrs["id"]) for _, attrs in self.tags if "id" in attrs)
        return [name for name, count in counts.items() if count > 1]

    def outside(self) -> list[str]:
        """Every address outside the page that it would load, or link to."""
        links = [
            str(attrs[key])
            for _, attrs in self.tags
            for key in ("src", "href", "xlink:href", "srcset", "data")
            if key in attrs
        ]
        links += re.findall(r"url\(([^)]*)\)", self.source) + re.findall(r"@import.*", self.source)
        return [link for link in links if not link.startswith("#")]
