"""Reads a file from an upload form piece by piece, and writes it to the disk as it arrives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from headway.gateway.http.asgi_client import Headers
from headway.gateway.http.refusal import bad_request

_MOST_FIELD_BYTES = 1024
_FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
FILE = "file"
MAX_FILENAME = 256


class UploadForm:
    """Parses a form: its short fields, the file's name, and the file's size."""

    def __init__(self, file: BinaryIO) -> None:
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self.bytes = 0
        self._file = file
        self.ended = False
        self._header, self._value = b"", b""
        self._name = ""
        self._field = b""

    def part_begin(self) -> None:
        """Another part begins."""
        self._name, self._field = "", b""

    def header_field(self, data: bytes, start: int, end: int) -> None:
        """Part of a header's name."""
        self._header += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        """Part of a header's value."""
        self._value += data[start:end]

    def header_end(self) -> None:
        """Read what a header says about its part. Raises GatewayError (400) for a part that is not accepted."""
        header, value, self._header, self._value = self._header.lower(), self._value, b"", b""
        if header != b"content-disposition":
            return
        options = parse_options_header(value)[1]
        self._name = options.get(b"name", b"").decode(errors="replace")
        if self._name == FILE and self.filename is None:
            self.filename = options.get(b"filename", b"upload").decode(errors="replace")[:MAX_FILENAME]
        elif self._name not in _FIELDS or self._name in self.fields:
            raise bad_request(
                f"the form has a part {self._name[:40]!r}; accepted: {FILE}, {', '.join(_FIELDS)}, each once"
            )

    def headers_finished(self) -> None:
        """The part's content begins. Raises GatewayError (400) if the part has no name."""
        if not self._name:
            raise bad_request("the form has a part without a name; accepted: form-data with names")

    def part_data(self, data: bytes, start: int, end: int) -> None:
        """Content of a part. Raises GatewayError (400) for a field that is too long."""
        if self._name == FILE:
            self.bytes += self._file.write(data[start:end])
            return
        self._field += data[start:end]
        if len(self._field) > _MOST_FIELD_BYTES:
            raise bad_request(f"{self._name} is longer than {_MOST_FIELD_BYTES} bytes", self._name)

    def part_end(self) -> None:
        """A part is complete."""
        if self._name != FILE:
            self.fields[self._name] = self._field.decode(errors="replace")

    def end(self) -> None:
        """The form is complete."""
        self.ended = True


async def read_form(
    headers: Headers, pieces: AsyncIterator[bytes], path: Path, checked: Callable[[int], None]
) -> UploadForm:
    """Read a form, with its file written to `path`; an error leaves no file.

    `checked` is called with the number of further bytes. Raises OSError, and GatewayError (400) for a malformed form.
    """
    try:
        with path.open("wb") as file:
            form = UploadForm(file)
            parser = _parser(headers, form)
            async for piece in pieces:
                checked(len(piece))
                parser.write(piece)
        if not form.ended:
            raise bad_request("the form breaks off before its last boundary; accepted: multipart/form-data")
        if form.filename is None:
            raise bad_request("the form has no file; accepted: a part 'file' and a part 'purpose'", FILE)
    except FormParserError as error:
        path.unlink(missing_ok=True)
        raise bad_request(f"the body is no form ({error}); accepted: multipart/form-data") from None
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return form


def _parser(headers: Headers, form: UploadForm) -> MultipartParser:
    kind, options = parse_options_header(dict(headers).get(b"content-type", b""))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise bad_request(
            f"the content type is {kind[:80].decode('latin-1')!r}; accepted: multipart/form-data"
        )
    return MultipartParser(
        options[b"boundary"],
        {
            "on_part_begin": form.part_begin,
            "on_part_data": form.part_data,
            "on_part_end": form.part_end,
            "on_header_field": form.header_field,
            "on_header_value": form.header_value,
            "on_header_end": form.header_end,
            "on_headers_finished": form.headers_finished,
            "on_end": form.end,
        },
    )
