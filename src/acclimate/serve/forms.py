"""Forms with pictures, parsed as they arrive. No picture touches the disk."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from acclimate.core.errors import ConfigError, OverLimit
from acclimate.serve.problems import WrongType

IMAGES, LABELS = "images", "labels"
LONGEST_LABEL = 1000  # bytes


@dataclass
class Form:
    """The fields `images`, the content of files, and `labels`, texts."""

    most: int  # of each
    parts: dict[str, list[bytearray]] = field(default_factory=lambda: {IMAGES: [], LABELS: []})
    complete: bool = False
    _header: bytearray = field(default_factory=bytearray)
    _value: bytearray = field(default_factory=bytearray)
    _disposition: bytes = b""

    @property
    def images(self) -> list[bytes]:
        return [bytes(part) for part in self.parts[IMAGES]]

    @property
    def labels(self) -> list[str]:
        try:
            return [part.decode() for part in self.parts[LABELS]]
        except UnicodeDecodeError:
            raise ConfigError("a label is not UTF-8; send it as such") from None

    # What the parser calls.

    def on_part_begin(self) -> None:
        self._disposition = b""

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def on_headers_finished(self) -> None:
        name = parse_options_header(self._disposition)[1].get(b"name", b"").decode(errors="replace")
        if name not in self.parts:
            raise ConfigError(f"the form has a field '{name[:50]}'; it may have {IMAGES}, {LABELS}")
        self._part = bytearray()
        self._longest = LONGEST_LABEL if name == LABELS else None
        self.parts[name].append(self._part)
        if len(self.parts[name]) > self.most:
            raise OverLimit(f"the form has more than {self.most} {name}; send fewer at once")

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._part += data[start:end]
        if self._longest is not None and len(self._part) > self._longest:
            raise OverLimit(f"a label has more than {self._longest} bytes; send a class")

    def on_end(self) -> None:
        self.complete = True


async def read_form(content_type: str, body: AsyncIterator[bytes], most: int) -> Form:
    """Parse a body of multipart/form-data with at least one image and at most `most`."""
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data":
        raise WrongType(f"images come as multipart/form-data; send files as the field {IMAGES}")
    form = Form(most)
    calls = {name: getattr(form, name) for name in dir(form) if name.startswith("on_")}
    try:
        parser = MultipartParser(options.get(b"boundary", b""), calls)  # type: ignore[arg-type]
        async for chunk in body:
            parser.write(chunk)
    except FormParserError as error:
        raise ConfigError(f"the form cannot be read ({error}); send multipart/form-data") from None
    if not form.complete:
        raise ConfigError("the form ends before its last boundary; send the whole of it")
    if not form.parts[IMAGES]:
        raise ConfigError(f"the form has no image; add files as the field {IMAGES}, repeated")
    return form
