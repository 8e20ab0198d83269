"""Parts of a prompt and of a tool's result: made, stored, read back, bounded, never shown."""

from __future__ import annotations

import base64
import copy
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolnexus import ConfigError, Request, ToolResult, WireFormatError, tool
from toolnexus.parts.media import sniff, without_base64
from toolnexus.parts.part import DEFAULT_MAX_PART_BYTES, Part, check_parts, content_of
from toolnexus.parts.sources import READ_MOST_BYTES
from toolnexus.toolspec import ToolContext, bound_parts, content_of_result

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
JPEG = b"\xff\xd8\xff\xe0" + bytes(40)
WAV = b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(20)
MP3 = b"ID3\x04" + bytes(20)
PDF = b"%PDF-1.7\n" + bytes(range(200))

Make = Callable[..., Part]
MAKERS: dict[str, Make] = {"image": Part.image, "file": Part.file, "audio": Part.audio}


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def url_of(part: Part) -> str:
    url: str = part.to_dict()["image_url"]["url"]
    return url


# ---------------------------------------------------------------- what a part is made from


@pytest.mark.parametrize(
    "way", ["path", "str", "bytes", "bytearray", "memoryview", "file", "url"]
)
def test_every_source_of_the_same_bytes_gives_the_same_part(tmp_path: Path, way: str) -> None:
    path = tmp_path / "chart.png"
    path.write_bytes(PNG)
    sources: dict[str, Any] = {
        "path": path,
        "str": str(path),
        "bytes": PNG,
        "bytearray": bytearray(PNG),
        "memoryview": memoryview(PNG),
        "file": io.BytesIO(PNG),
        "url": f"data:image/png;base64,{encoded(PNG)}",
    }
    part = Part.image(sources[way])

    assert part.to_dict() == {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{encoded(PNG)}"},
    }
    assert (part.kind, part.media_type, part.size_bytes) == ("image", "image/png", len(PNG))


def test_an_open_file_is_read_from_where_it_is_and_left_open(tmp_path: Path) -> None:
    path = tmp_path / "scan.pdf"
    path.write_bytes(b"skipped" + PDF)
    with path.open("rb") as file:
        file.read(len(b"skipped"))
        part = Part.file(file)
        assert not file.closed
    assert part.to_dict() == {
        "type": "file",
        "file": {
            "filename": "scan.pdf",
            "file_data": f"data:application/pdf;base64,{encoded(PDF)}",
        },
    }


def test_a_file_that_reads_in_small_pieces_is_read_to_its_end() -> None:
    class Drip(io.RawIOBase):
        def __init__(self) -> None:
            self.left = list(PNG)

        def read(self, size: int = -1, /) -> bytes:
            taken, self.left = self.left[:7], self.left[7:]
            return bytes(taken)

    assert Part.image(Drip()) == Part.image(PNG)


def test_audio_holds_base64_and_its_format() -> None:
    assert Part.audio(WAV).to_dict() == {
        "type": "input_audio",
        "input_audio": {"data": encoded(WAV), "format": "wav"},
    }
    assert Part.audio(MP3).to_dict()["input_audio"]["format"] == "mp3"
    assert Part.audio(b"raw", format=".PCM16").to_dict()["input_audio"]["format"] == "pcm16"


@pytest.mark.parametrize(
    ("part", "stored"),
    [
        (
            Part.image("https://x.test/a?sig=s3cret", detail="low"),
            {
                "type": "image_url",
                "image_url": {"url": "https://x.test/a?sig=s3cret", "detail": "low"},
            },
        ),
        (
            Part.file("https://x.test/docs/a%20b.pdf?sig=s3cret"),
            {
                "type": "file",
                "file": {
                    "filename": "a b.pdf",
                    "file_url": "https://x.test/docs/a%20b.pdf?sig=s3cret",
                    "media_type": "application/pdf",
                },
            },
        ),
        (
            Part.audio("https://x.test/a.mp3"),
            {
                "type": "input_audio",
                "input_audio": {"url": "https://x.test/a.mp3", "format": "mp3"},
            },
        ),
    ],
)
def test_a_web_address_is_stored_as_it_is(part: Part, stored: dict[str, Any]) -> None:
    assert part.to_dict() == stored
    assert part.size_bytes is None
    assert "s3cret" not in repr(part) + str(part)


@pytest.mark.parametrize(
    ("url", "media_type", "data"),
    [
        ("data:text/plain;charset=utf-8;base64,aMOp", "text/plain", "hé".encode()),
        ("data:text/plain;charset=latin-1;base64,aOk=", "text/plain", "hé".encode()),
        ("data:text/plain,a%20b", "text/plain", b"a b"),
        ("data:,a", "text/plain", b"a"),
        ("DATA:Text/CSV;BASE64,YSxi", "text/csv", b"a,b"),
        ("data:text/csv;base64,YSxiYw", "text/csv", b"a,bc"),
        ("data:text/csv;base64,YS\n xi", "text/csv", b"a,b"),
        ("data:text/csv;base64,YSxi%59w%3D%3D", "text/csv", b"a,bc"),
    ],
)
def test_data_urls_of_any_form_are_stored_in_one(
    url: str, media_type: str, data: bytes
) -> None:
    stored = Part.file(url).to_dict()["file"]["file_data"]
    assert stored == f"data:{media_type};base64,{encoded(data)}"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("http://x.test/a.png", "http:// is not taken"),
        ("ftp://x.test/a.png", "ftp:// is not taken"),
        ("s3://bucket/a.png", "s3:// is not taken"),
        ("file:///etc/a.png", "give its path"),
        ("https:///a.png", "https://host/path"),
        ("https://[x/a.png", "https://host/path"),
        ("https://x.test/a b.png", "white space"),
        ("data:image/png;base64", "no comma"),
        ("data:image/png;base64,A!!A", "are not base64"),
        ("data:image/png;base64,", "0 bytes"),
        ("data:image;base64,AAAA", "like 'image/png'"),
        ("data:text/plain;charset=klingon,a", "charset"),
        (b"", "0 bytes"),
        (7, "not int"),
        (None, "a path, bytes, a binary file object"),
        (["a.png"], "not list"),
        (io.StringIO("text"), "binary mode"),
        ("no/such/file.png", "No such file"),
        ("nul\0.png", "cannot be read"),
        (".", "is a directory"),
        ("iVBO" * 2000, "data:<media type>;base64"),
    ],
)
@pytest.mark.parametrize("kind", MAKERS)
def test_what_is_no_source_is_refused_with_what_would_be_right(
    kind: str, source: Any, says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        MAKERS[kind](source)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 300
    assert caught.value.__cause__ is None


def test_a_closed_file_is_refused() -> None:
    file = io.BytesIO(PNG)
    file.close()
    with pytest.raises(ConfigError, match="the file object cannot be read"):
        Part.image(file)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.png"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match="no regular file"):
        Part.image(pipe)


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.png"
    with path.open("wb") as file:
        file.truncate(10 * 2**30)
    with pytest.raises(ConfigError, match="larger than 134,217,728 bytes"):
        Part.image(path)


def test_an_endless_file_object_is_read_to_the_cap_only() -> None:
    class Endless:
        given = 0

        def read(self, size: int, /) -> bytes:
            self.given += size
            return bytes(size)

    file = Endless()
    with pytest.raises(ConfigError, match="the most a part may hold"):
        Part.image(file)
    assert file.given <= READ_MOST_BYTES + 2**21


# ---------------------------------------------------------------- what it is


@pytest.mark.parametrize(
    ("name", "data", "given", "media_type"),
    [
        ("a.webp", b"x", None, "image/webp"),
        ("a.PNG", b"x", None, "image/png"),
        ("a.png", b"x", "image/gif", "image/gif"),
        ("a.png", JPEG, None, "image/jpeg"),
        ("a.png", JPEG, "image/png", "image/png"),
        ("noname", b"GIF89a..", None, "image/gif"),
        ("odd.bin", b"RIFF....WEBPVP8 ", None, "image/webp"),
        ("a", b"x", "IMAGE/JPG; q=1", "image/jpeg"),
    ],
)
def test_the_media_type_is_given_or_named_or_found(
    tmp_path: Path, name: str, data: bytes, given: str | None, media_type: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert Part.image(path, media_type=given).media_type == media_type


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (PNG, "image/png"),
        (JPEG, "image/jpeg"),
        (b"GIF87a", "image/gif"),
        (b"RIFF\0\0\0\0WEBP", "image/webp"),
        (PDF, "application/pdf"),
        (WAV, "audio/wav"),
        (MP3, "audio/mpeg"),
        (b"\xff\xfb\x90\x00", "audio/mpeg"),
        (b"\xff\xf1\x50\x80", ""),
        (b"RIFF\0\0\0\0AVI ", ""),
        (b"hello", ""),
        (b"", ""),
        (b"\xff", ""),
    ],
)
def test_first_bytes(data: bytes, media_type: str) -> None:
    assert sniff(data) == media_type


def test_what_nothing_tells_is_asked_for() -> None:
    for make in (Part.image, Part.file):
        with pytest.raises(ConfigError, match="give media_type"):
            make(b"hello")
    with pytest.raises(ConfigError, match="give format='wav'"):
        Part.audio(b"hello")


def test_a_name_names_the_type_of_bytes() -> None:
    part = Part.file(b"a,b", name="table.csv")
    assert part.to_dict()["file"]["filename"] == "table.csv"
    assert part.media_type == "text/csv"
    assert Part.file(PDF).to_dict()["file"]["filename"] == "file.pdf"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Part.image(PDF), "application/pdf is no image; Part.file"),
        (lambda: Part.image(PNG, media_type="audio/wav"), "audio/wav is no image"),
        (lambda: Part.audio(PNG), "image/png is no audio; Part.image"),
        (lambda: Part.image(PNG, media_type="png"), "like 'image/png', not 'png'"),
        (lambda: Part.image(PNG, media_type=5), "media_type must be a str"),
        (lambda: Part.image(PNG, detail="huge"), "detail must be one of auto, low, high"),
        (lambda: Part.file(PDF, name=5), "name must be a str"),
        (lambda: Part.audio(WAV, format="../x"), "such as 'wav'"),
        (lambda: Part.audio(WAV, format=5), "give format"),
        (lambda: Part.text(5), "a part's text must be a str, not int"),
    ],
)
def test_a_wrong_option_is_refused(make: Callable[[], Part], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert says in str(caught.value)


# ---------------------------------------------------------------- stored and read back

names = st.one_of(st.none(), st.sampled_from(["report.pdf", "ü.txt", "a b.md", "\ud800.pdf"]))
blobs = st.binary(min_size=1, max_size=60)
hosts = st.sampled_from(["https://x.test/a.png", "https://x.test/a.pdf?q=1", "https://x.test"])
parts = st.one_of(
    st.builds(Part.text, st.text(max_size=10)),
    st.builds(
        lambda data, kind, detail: Part.image(data, media_type=kind, detail=detail),
        blobs,
        st.sampled_from(["image/png", "image/tiff", "image/jpg"]),
        st.sampled_from([None, "low"]),
    ),
    st.builds(
        lambda data, kind, name: Part.file(data, media_type=kind, name=name),
        blobs,
        st.sampled_from(["application/pdf", "text/plain", "application/x-thing"]),
        names,
    ),
    st.builds(
        lambda data, word: Part.audio(data, format=word), blobs, st.sampled_from(["wav", "ogg"])
    ),
    st.builds(lambda url: Part.image(url, media_type="image/png"), hosts),
    st.builds(lambda url: Part.file(url, media_type="application/pdf"), hosts),
    st.builds(lambda url: Part.audio(url, format="mp3"), hosts),
)


@given(st.lists(parts, min_size=1, max_size=4))
def test_any_mix_of_parts_survives_being_stored(mix: list[Part]) -> None:
    for part in mix:
        stored = json.loads(json.dumps(part.to_dict()))
        assert Part.from_dict(stored) == part
        assert Part.from_dict(stored).to_dict() == part.to_dict()
    result = ToolResult.ok(mix)
    read = ToolResult.from_dict(json.loads(json.dumps(result.to_dict())))
    assert read == result
    assert read.parts == tuple(mix)
    assert content_of_result(read, None) == content_of_result(result, None)
    check_parts(content_of(mix), 60)


@given(st.lists(parts, min_size=1, max_size=4))
def test_no_repr_shows_data(mix: list[Part]) -> None:
    shown = repr(mix) + repr(ToolResult.ok(mix)) + "".join(map(str, mix))
    for part in mix:
        for body in part.to_dict().values():
            data = body.get("data") or body.get("file_data") if isinstance(body, dict) else ""
            assert not data or len(data) < 20 or data[-12:] not in shown
    assert ";base64," not in shown
    assert "?" not in "".join(shown.split("https://")[1:])


def test_a_repr_says_kind_type_and_size() -> None:
    assert repr(Part.image(PNG)) == "Part(image: image/png, 264 bytes)"
    assert repr(Part.file(PDF, name="a.pdf")) == "Part(file: application/pdf, 209 bytes, a.pdf)"
    assert repr(Part.audio(WAV)) == f"Part(audio: audio/wav, {len(WAV)} bytes)"
    assert repr(Part.text("secret")) == "Part(text: text/plain, 6 bytes)"
    assert repr(Part.image("https://u:p@x.test/a?k=1")) == "Part(image: image at x.test)"


def test_to_dict_shares_nothing_that_changes_the_part() -> None:
    part = Part.image(PNG)
    part.to_dict()["image_url"]["url"] = "!"
    assert url_of(part).startswith("data:")


def test_a_part_reads_what_others_stored() -> None:
    raw = {
        "type": "text",
        "text": "x",
        "cache_control": {"type": "ephemeral"},
        "_ours": 1,
    }
    kept = copy.deepcopy(raw)
    assert Part(raw).to_dict() == {key: raw[key] for key in ("type", "text", "cache_control")}
    assert raw == kept
    assert url_of(Part({"type": "image_url", "image_url": "https://x.test/a"})) == (
        "https://x.test/a"
    )
    by_id = {"type": "file", "file": {"file_id": "file-1"}}
    assert Part(by_id).to_dict() == by_id
    assert repr(Part(by_id)) == "Part(file: by id)"


@pytest.mark.parametrize(
    ("foreign", "stored"),
    [
        (
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
            },
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        ),
        (
            {"type": "image", "source": {"type": "url", "url": "https://x.test/a"}},
            {"type": "image_url", "image_url": {"url": "https://x.test/a"}},
        ),
        (
            {
                "type": "document",
                "title": "t",
                "source": {"type": "text", "media_type": "text/plain", "data": "hé"},
            },
            {
                "type": "file",
                "file": {"filename": "t", "file_data": "data:text/plain;base64,aMOp"},
            },
        ),
        (
            {"type": "document", "source": {"type": "url", "url": "https://x.test/a"}},
            {
                "type": "file",
                "file": {
                    "filename": "file.pdf",
                    "file_url": "https://x.test/a",
                    "media_type": "application/pdf",
                },
            },
        ),
    ],
)
def test_a_part_of_anthropics_shape_becomes_one_of_ours(
    foreign: dict[str, Any], stored: dict[str, Any]
) -> None:
    assert Part(foreign).to_dict() == stored


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([], "not list"),
        ({}, "a part of type ''"),
        ({"type": ["x"]}, "a part of type ''"),
        ({"type": "video_url", "video_url": {}}, "known: text, image_url, file, input_audio"),
        ({"type": "text"}, "not NoneType"),
        ({"type": "text", "text": "x", "more": {1}}, "must be JSON"),
        ({"type": "image_url"}, "'image_url' must be an object"),
        (
            {"type": "image_url", "image_url": {"url": "data:text/plain;base64,AAAA"}},
            "no image",
        ),
        ({"type": "image_url", "image_url": {"url": "http://x.test/a"}}, "an https URL"),
        ({"type": "image_url", "image_url": {}}, "its data or a URL"),
        ({"type": "file", "file": {}}, "its data or a URL"),
        ({"type": "file", "file": {"filename": 1, "file_id": "x"}}, "a file's name"),
        ({"type": "file", "file": {"file_data": "AAAA"}}, "must be a data: URL"),
        ({"type": "file", "file": {"file_url": "data:a/b;base64,AAAA"}}, "an https URL"),
        ({"type": "file", "file": {"file_url": "https://x.test/a"}}, "media_type must be"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA"}}, "needs a format"),
        ({"type": "input_audio", "input_audio": {"data": "A", "format": "wav"}}, "be base64"),
        ({"type": "input_audio", "input_audio": {"format": "wav"}}, "its data or a URL"),
        ({"type": "image", "source": {"type": "file", "file_id": "f"}}, "no data and no URL"),
    ],
)
def test_a_malformed_stored_part_is_refused(data: Any, says: str) -> None:
    with pytest.raises(WireFormatError) as caught:
        Part.from_dict(data)
    assert says in str(caught.value)


# ---------------------------------------------------------------- prompts


@pytest.mark.parametrize(
    ("prompt", "content"),
    [
        ("hi", "hi"),
        ("", ""),
        (["hi"], "hi"),
        ([Part.text("hi")], "hi"),
        ([{"type": "text", "text": "hi"}], "hi"),
        (Part.image("https://x.test/a"), [Part.image("https://x.test/a").to_dict()]),
        (("a", "b"), [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        (
            ["see", Part.image(PNG), {"type": "text", "text": "?", "cache_control": {}}],
            [
                {"type": "text", "text": "see"},
                Part.image(PNG).to_dict(),
                {"type": "text", "text": "?", "cache_control": {}},
            ],
        ),
        (
            [{"type": "image", "source": {"type": "file", "file_id": "f"}, "x": 1}],
            [{"type": "image", "source": {"type": "file", "file_id": "f"}, "x": 1}],
        ),
    ],
)
def test_what_a_prompt_is_stored_as(prompt: Any, content: Any) -> None:
    assert content_of(prompt) == content


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ([], "empty list"),
        ((), "empty list"),
        (5, "a str or a list of parts, not int"),
        (None, "not NoneType"),
        (b"x", "not bytes"),
        ({"type": "text", "text": "x"}, "not dict"),
        (iter(["x"]), "a list of parts"),
        (["x", 5], "prompt[1]: a part is a str, a Part"),
        (["x", b"y"], "not bytes"),
        ([Path("a.png")], "prompt[0]"),
        ([["x"]], "prompt[0]: a part is a str, a Part"),
        ([{"role": "user", "content": "x"}], "this is a message"),
        ([{"type": "image"}], "prompt[0]: this image has no data"),
        ([{"type": "tool_result", "content": "x"}], "prompt[0]: a part of type 'tool_result'"),
    ],
)
def test_a_prompt_of_something_else_is_refused(prompt: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        content_of(prompt)
    assert says in str(caught.value)


def test_a_part_over_the_cap_is_named_with_its_size() -> None:
    content = content_of(["look", Part.image(PNG)])
    check_parts(content, len(PNG))
    check_parts(content, None)
    with pytest.raises(ConfigError) as caught:
        check_parts(content, len(PNG) - 1)
    assert str(caught.value) == (
        "prompt[1] (image/png, 264 bytes) is larger than max_part_bytes (263); "
        "make it smaller, or raise that option"
    )
    with pytest.raises(ConfigError, match=r"prompt\[0\]"):
        check_parts([Part.audio(WAV)], 3)


def test_the_cap_knows_every_shape() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": encoded(PNG)}
    text = {"type": "text", "media_type": "text/plain", "data": "é" * 10}
    for part, size in (
        ({"type": "image", "source": source}, len(PNG)),
        ({"type": "document", "source": text}, 20),
        (Part.file(PDF).to_dict(), len(PDF)),
    ):
        check_parts(content_of([part]), size)
        with pytest.raises(ConfigError):
            check_parts(content_of([part]), size - 1)


def test_texts_and_addresses_have_no_size() -> None:
    check_parts("x" * 100, 1)
    check_parts(content_of(["x" * 100, Part.image("https://x.test/a")]), 1)


def test_the_cap_is_twenty_mebibytes() -> None:
    assert DEFAULT_MAX_PART_BYTES == 20 * 1024 * 1024


# ---------------------------------------------------------------- what a tool gives


def given_by(value: object) -> ToolResult:
    def chart() -> Any:
        """Draw a chart."""
        return value

    return tool(chart).execute({}, ToolContext())


@pytest.mark.parametrize(
    ("value", "output"),
    [
        (Part.image(PNG), "[image/png, 264 bytes]"),
        ([Part.image(PNG)], "[image/png, 264 bytes]"),
        (["two:", Part.image(PNG), Part.audio(WAV)], None),
        (("a", Part.text("b")), "a\nb"),
        ([Part.text("a"), {"type": "text", "text": "b"}], "a\nb"),
        (ToolResult.ok(["a", Part.image(PNG)], n=1), "a\n[image/png, 264 bytes]"),
    ],
)
def test_a_function_may_return_parts(value: object, output: str | None) -> None:
    result = given_by(value)
    assert not result.is_error
    assert result.parts
    assert result.output == (
        output or f"two:\n[image/png, 264 bytes]\n[audio/wav, {len(WAV)} bytes]"
    )


@pytest.mark.parametrize(
    ("value", "output"),
    [
        (["a", "b"], '["a","b"]'),
        ([{"type": "text", "text": "b"}], '[{"type":"text","text":"b"}]'),
        ([], "[]"),
        ((1, 2), "[1,2]"),
        ({"a": [1]}, '{"a":[1]}'),
    ],
)
def test_a_list_without_a_part_is_json(value: object, output: str) -> None:
    assert given_by(value) == ToolResult(output)
    assert ToolResult.ok(value) == ToolResult(output)


def test_parts_where_they_cannot_be_shown_are_an_error_without_their_data() -> None:
    for value, says in (
        ([Part.image(PNG), 5], "parts[1]: a part is a str, a Part"),
        ({"chart": Part.image(PNG)}, "a Part is returned by itself or in a list"),
        ([[Part.image(PNG)]], "a Part is returned by itself or in a list"),
    ):
        result = given_by(value)
        assert result.is_error
        assert says in result.output
        assert encoded(PNG)[:40] not in result.output


def test_the_output_is_made_of_the_parts_unless_it_is_given() -> None:
    picture = Part.image(PNG)
    assert ToolResult(parts=["a", picture]).output == "a\n[image/png, 264 bytes]"
    assert ToolResult("given", parts=[picture]).output == "given"
    assert ToolResult(parts=picture).parts == (picture,)
    assert ToolResult("x").parts == ()
    with pytest.raises(ConfigError, match="parts must be a list of parts, not str"):
        ToolResult("x", parts="y")
    with pytest.raises(ConfigError, match=r"parts\[0\]: a part is"):
        ToolResult("x", parts=[5])


def test_what_the_model_is_shown() -> None:
    picture = Part.image(PNG)
    text, image = {"type": "text", "text": "see"}, picture.to_dict()
    both = ToolResult.ok(["see", picture])

    assert content_of_result(ToolResult("plain"), None) == "plain"
    assert content_of_result(both, None) == [text, image]
    assert content_of_result(ToolResult.ok(["a", Part.text("b")]), None) == "a\nb"
    assert content_of_result(ToolResult("see", parts=[picture]), None) == [text, image]
    assert content_of_result(ToolResult("", parts=["lost", picture]), None) == [image]
    assert content_of_result(ToolResult("", parts=["lost"]), None) == ""


def test_a_text_that_was_taken_out_of_the_output_is_not_shown() -> None:
    result = ToolResult.ok(["the key is s3cret", Part.image(PNG)])
    redacted = attrs.evolve(result, output="***")
    assert content_of_result(redacted, None) == [
        {"type": "text", "text": "***"},
        Part.image(PNG).to_dict(),
    ]


def test_a_part_over_the_cap_is_left_out_and_said_to_be() -> None:
    result = ToolResult.ok(["see", Part.image(PNG)])
    assert content_of_result(result, len(PNG)) == content_of_result(result, None)
    assert content_of_result(result, 100) == (
        "see\n[image/png, 264 bytes: left out, larger than 100 bytes]"
    )


def test_a_part_over_the_cap_is_not_kept() -> None:
    result = ToolResult.ok(["see", Part.image(PNG)], n=1)
    left_out = "[image/png, 264 bytes: left out, larger than 100 bytes]"

    assert bound_parts(result, None) is result
    assert bound_parts(result, len(PNG)) is result
    assert bound_parts(ToolResult("x"), 0) == ToolResult("x")
    assert bound_parts(result, 100) == ToolResult.ok([Part.text("see"), left_out], n=1)
    changed = bound_parts(attrs.evolve(result, output="***"), 100)
    assert content_of_result(changed) == changed.output == f"***\n{left_out}"


def test_the_stored_form_of_a_result_without_parts_is_as_before() -> None:
    assert ToolResult("x").to_dict() == {"output": "x", "isError": False}
    assert ToolResult.pending(Request("a", "b")).parts == ()
    for parts in ("x", {}, [5], [{"type": "x"}]):
        with pytest.raises(WireFormatError):
            ToolResult.from_dict({"output": "x", "parts": parts})


# ---------------------------------------------------------------- base64 in texts

CANARY = bytes(range(250))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda text: f"bad image: {text}",
        lambda text: json.dumps({"error": {"message": text}}),
        lambda text: json.dumps({"error": text}).replace("/", "\\/"),
        lambda text: f"data:image/png;base64,{text}",
        lambda text: json.dumps(f"data:image/png;base64,{text}").replace("/", "\\/"),
        lambda text: text.replace("+", "-").replace("/", "_"),
        lambda _: base64.encodebytes(CANARY).decode(),
        lambda _: json.dumps(base64.encodebytes(CANARY).decode()),
        lambda _: f"data:a/b;charset=utf-8;base64,{base64.encodebytes(CANARY).decode()}",
    ],
)
def test_base64_is_taken_out_of_a_text(wrap: Callable[[str], str]) -> None:
    canary = encoded(CANARY)
    shown = without_base64(wrap(canary))
    assert "[base64, " in shown
    for start in range(0, len(canary) - 12, 12):
        assert canary[start : start + 12] not in shown.replace("\\/", "/")


def test_other_texts_stay() -> None:
    for text in (
        "",
        "messages.0.content.1.image.source.base64.media_type: Input should be 'image/png'",
        "sha256 " + "0f" * 32,
        "expected data:image/png;base64 and a comma",
        "a sentence of words. " * 20,
        "xY" * 49,
        "x" * 999,  # real base64 of that length has letters of both cases
    ):
        assert without_base64(text) == text
    assert without_base64("xY" * 50) == "[base64, 100 characters]"
    assert without_base64("a data:image/png;base64,AAAA b") == "a [base64, 26 characters] b"
