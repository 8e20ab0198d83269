"""Parts in both wires' own forms; what a wire has no form for; what strict providers refuse."""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolnexus import ConfigError
from toolnexus.codec import dumps, encode, loads
from toolnexus.parts.part import Part, content_of
from toolnexus.testing.strict import Refusal
from toolnexus.testing.strict_anthropic import ThoughtMemory, check_anthropic
from toolnexus.testing.strict_openai import check_openai
from toolnexus.toolspec import ToolResult, content_of_result
from toolnexus.wire.base import ModelRequest
from toolnexus.wire.parts import require_takeable
from toolnexus.wire.styles import dialect_of

STYLES = ("openai", "anthropic")
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(64))
PDF = b"%PDF-1.7\n" + bytes(range(64))
HEADERS = {
    "authorization": "Bearer k",
    "x-api-key": "k",
    "anthropic-version": "2023-06-01",
    "content-type": "application/json",
}


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def sent(style: str, *messages: Any) -> list[dict[str, Any]]:
    """Return the messages on the wire; what is stored stays as it is."""
    kept = copy.deepcopy(messages)
    body = dialect_of(style).request_body(ModelRequest(model="m", messages=messages))
    assert messages == kept
    out: list[dict[str, Any]] = loads(encode(body))["messages"]
    return out


def user_parts(style: str, *parts: Any) -> Any:
    """Return the wire form of parts that a user says after a word."""
    stored = content_of(["look", *parts])
    content = sent(style, {"role": "user", "content": stored})[0]["content"]
    assert content[0] == {"type": "text", "text": "look"}
    return content[1:]


def tool_content(style: str, result: ToolResult, *, is_error: bool = False) -> Any:
    """Return the wire form of a tool's result."""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    told = {"role": "tool", "tool_call_id": "a", "content": content_of_result(result, None)}
    messages = sent(
        style,
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {**told, "_is_error": True} if is_error else told,
    )
    last = messages[-1]["content"]
    return last if style == "openai" else last[0]["content"]


def check(style: str, messages: list[Any]) -> None:
    """Refuse what the provider of `style` would."""
    body: dict[str, Any] = {"model": "m", "messages": messages}
    if style == "openai":
        check_openai(HEADERS, body)
    else:
        check_anthropic(HEADERS, {**body, "max_tokens": 1}, ThoughtMemory())


# ---------------------------------------------------------------- what is taken

IMAGE_URL = f"data:image/png;base64,{b64(PNG)}"
TAKEN: dict[str, tuple[Part, Any, Any]] = {
    "an image": (
        Part.image(PNG, detail="low"),
        {"type": "image_url", "image_url": {"url": IMAGE_URL, "detail": "low"}},
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": b64(PNG)},
        },
    ),
    "a web image": (
        Part.image("https://x.test/a?s=1"),
        {"type": "image_url", "image_url": {"url": "https://x.test/a?s=1"}},
        {"type": "image", "source": {"type": "url", "url": "https://x.test/a?s=1"}},
    ),
    "a PDF": (
        Part.file(PDF, name="r.pdf"),
        {
            "type": "file",
            "file": {
                "filename": "r.pdf",
                "file_data": f"data:application/pdf;base64,{b64(PDF)}",
            },
        },
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": b64(PDF)},
            "title": "r.pdf",
        },
    ),
    "a plain text file": (
        Part.file("hé".encode(), name="n.txt"),
        {
            "type": "file",
            "file": {"filename": "n.txt", "file_data": "data:text/plain;base64,aMOp"},
        },
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "hé"},
            "title": "n.txt",
        },
    ),
}


@pytest.mark.parametrize("name", TAKEN)
def test_the_form_on_each_wire(name: str) -> None:
    part, openai, anthropic = TAKEN[name]
    for style, form in zip(STYLES, (openai, anthropic), strict=True):
        require_takeable(content_of([part]), style)
        assert user_parts(style, part) == [form]
        check(style, [{"role": "user", "content": [form]}])


def test_audio_goes_to_openai_alone() -> None:
    part = Part.audio(b"ID3x")
    assert user_parts("openai", part) == [part.to_dict()]
    check("openai", [{"role": "user", "content": [part.to_dict()]}])


def test_a_web_pdf_goes_to_anthropic_alone() -> None:
    part = Part.file("https://x.test/a.pdf")
    form = {
        "type": "document",
        "source": {"type": "url", "url": "https://x.test/a.pdf"},
        "title": "a.pdf",
    }
    assert user_parts("anthropic", part) == [form]
    check("anthropic", [{"role": "user", "content": [form]}])


# ---------------------------------------------------------------- what is not

REFUSED: dict[str, tuple[str, Any, str]] = {
    "audio": ("anthropic", Part.audio(b"ID3x"), "audio/mpeg, 4 bytes"),
    "a table": ("anthropic", Part.file(b"a", name="t.csv"), "text/csv, 1 bytes, t.csv"),
    "no UTF-8": ("anthropic", Part.file(b"\xff", name="t.txt"), "text/plain, 1 bytes, t.txt"),
    "a blank text": (
        "anthropic",
        Part.file(b" \n", name="t.txt"),
        "text/plain, 2 bytes, t.txt",
    ),
    "a web text": (
        "anthropic",
        Part.file("https://x.test/t.txt?s3cret"),
        "text/plain at x.test, t.txt",
    ),
    "a web file": (
        "openai",
        Part.file("https://x.test/a.pdf?s3cret"),
        "application/pdf at x.test, a.pdf",
    ),
    "web audio": ("openai", Part.audio("https://x.test/a.mp3"), "audio/mpeg at x.test"),
    "odd audio": ("openai", Part.audio(b"OggS", format="ogg"), "audio/ogg, 4 bytes"),
    "an odd image": (
        "openai",
        Part.image(b"x", media_type="image/tiff"),
        "image/tiff, 1 bytes",
    ),
    "the same there": (
        "anthropic",
        Part.image(b"x", media_type="image/tiff"),
        "image/tiff, 1 bytes",
    ),
    "a stored file": (
        "anthropic",
        {"type": "file", "file": {"file_id": "file-1"}},
        "file",
    ),
    "Anthropic's file": (
        "openai",
        {"type": "image", "source": {"type": "file", "file_id": "f"}},
        "image",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_users_own_part_that_is_not_taken_is_an_error(name: str) -> None:
    style, part, told = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        require_takeable(content_of(["look", part]), style)
    message = str(caught.value)
    assert message.startswith(
        f"prompt[1] ({told}) cannot be sent: the '{style}' style takes text, png, jpeg,"
    )
    assert "s3cret" not in message


@pytest.mark.parametrize("name", REFUSED)
def test_in_a_history_it_is_a_placeholder(name: str) -> None:
    style, part, told = REFUSED[name]
    kind = content_of([part])[0]["type"]  # type: ignore[index]  # a list: it is no text
    (block,) = user_parts(style, part)
    assert block["type"] == "text"
    assert block["text"].startswith(
        f"(a part of type '{kind}' that this provider does not take"
    )
    assert told in block["text"]
    assert "s3cret" not in block["text"]


def test_a_text_is_always_taken() -> None:
    for style in STYLES:
        require_takeable("x", style)
        require_takeable(content_of(["x", "y"]), style)


# ---------------------------------------------------------------- what tools give


def test_anthropic_is_shown_what_a_tool_gives() -> None:
    result = ToolResult.ok(["see", Part.image(PNG), Part.file(PDF), Part.audio(b"ID3x")])
    assert tool_content("anthropic", result) == [
        {"type": "text", "text": "see"},
        TAKEN["an image"][2],
        {**TAKEN["a PDF"][2], "title": "file.pdf"},
        {
            "type": "text",
            "text": "(a part of type 'input_audio' that this provider does not take: "
            "audio/mpeg, 4 bytes)",
        },
    ]


def test_an_error_result_is_text_alone_for_anthropic() -> None:
    result = ToolResult(parts=["no", Part.image(PNG)], is_error=True)
    content = tool_content("anthropic", result, is_error=True)
    assert [block["type"] for block in content] == ["text", "text"]
    assert "image/png, 72 bytes" in content[1]["text"]


def test_openai_is_told_what_a_tool_gives_as_one_text() -> None:
    result = ToolResult.ok(["see", Part.image(PNG)])
    assert tool_content("openai", result) == (
        "see\n(a part of type 'image_url' that this provider does not take: "
        "image/png, 72 bytes)"
    )


@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
def test_no_other_role_has_media_on_openais_wire(role: str) -> None:
    stored = {
        "role": role,
        "content": [{"type": "text", "text": "x"}, Part.image(PNG).to_dict()],
    }
    said = sent("openai", {"role": "user", "content": "go"}, stored)[1]
    assert [part["type"] for part in said["content"]] == ["text", "text"]
    check("openai", [said])


# ---------------------------------------------------------------- Anthropic's own shapes

FOREIGN: dict[str, tuple[dict[str, Any], Any]] = {
    "an image": (TAKEN["an image"][2], {"type": "image_url", "image_url": {"url": IMAGE_URL}}),
    "a web image": (TAKEN["a web image"][2], TAKEN["a web image"][1]),
    "a PDF": (TAKEN["a PDF"][2], TAKEN["a PDF"][1]),
    "a text": (
        {**TAKEN["a plain text file"][2], "citations": {"enabled": True}},
        TAKEN["a plain text file"][1],
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_part_of_anthropics_shape_goes_to_both(name: str) -> None:
    foreign, openai = FOREIGN[name]
    assert user_parts("anthropic", foreign) == [foreign]
    assert user_parts("openai", foreign) == [openai]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image"},
        {"type": "image", "source": {}},
        {"type": "image", "source": 5},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}},
        {"type": "image", "source": {"type": "base64", "media_type": "a/b", "data": "AAAA"}},
        {"type": "image", "source": {"type": "text", "media_type": "text/plain", "data": "x"}},
        {"type": "document", "source": {"type": "url", "url": None}},
        {"type": "image_url"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}},
        {"type": "image_url", "image_url": {"url": "data:image/png,AAAA"}},
        {"type": "file"},
        {"type": "file", "file": {"file_data": "AAAA"}},
        {"type": "file", "file": {"file_data": 5, "filename": {}}},
        {"type": "input_audio", "input_audio": {"data": True, "format": "wav"}},
        {"type": "input_audio", "input_audio": {"format": []}},
        {},
    ],
)
def test_a_broken_part_of_a_history_is_a_placeholder(part: dict[str, Any]) -> None:
    for style in STYLES:
        told = sent(style, {"role": "user", "content": [part]})
        assert "that this provider does not take" in dumps(told)
        check(style, told)


def test_a_part_that_only_some_server_knows_goes_through_openais_wire() -> None:
    video = {"type": "video_url", "video_url": {"url": "https://x.test/a"}}
    assert sent("openai", {"role": "user", "content": [video]})[0]["content"] == [video]


def test_keys_of_ours_stay_here() -> None:
    for style in STYLES:
        stored = [
            {"type": "text", "text": "x", "_note": 1},
            {**Part.image(PNG).to_dict(), "_note": 1},
            {**TAKEN["a PDF"][2], "_note": 1},
        ]
        assert "_note" not in dumps(sent(style, {"role": "user", "content": stored}))


# ---------------------------------------------------------------- strict providers refuse


def user(part: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [part]}]


def image_url(url: Any, **more: Any) -> Any:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def source(kind: str, **body: Any) -> Any:
    return {"type": kind, "source": body}


STRICT: dict[str, tuple[str, Any, str]] = {
    "no object": ("openai", {"type": "image_url", "image_url": "u"}, "expected an object"),
    "no URL": ("openai", image_url(None), "url: is required"),
    "no base64": ("openai", image_url("data:image/png;base64,A"), "invalid base64"),
    "no data": ("openai", image_url("data:image/png;base64,"), "invalid base64"),
    "an odd image": ("openai", image_url("data:image/bmp;base64,AAAA"), "unsupported image"),
    "a detail": ("openai", image_url("https://x.test", detail="x"), "detail"),
    "a shape": ("openai", source("image", type="url", url="https://x.test"), "Invalid value"),
    "no name": (
        "openai",
        {"type": "file", "file": {"file_data": "data:a/b;base64,AAAA"}},
        "filename: is required",
    ),
    "no file": (
        "openai",
        {"type": "file", "file": {"filename": "a"}},
        "file_data: is required",
    ),
    "a web file": (
        "openai",
        {"type": "file", "file": {"filename": "a", "file_url": "https://x.test"}},
        "Unknown parameter",
    ),
    "a bare file": (
        "openai",
        {"type": "file", "file": {"filename": "a", "file_data": "AAAA"}},
        "data URL",
    ),
    "a format": (
        "openai",
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "ogg"}},
        "'wav' or 'mp3'",
    ),
    "no audio": (
        "openai",
        {"type": "input_audio", "input_audio": {"format": "wav"}},
        "invalid base64",
    ),
    "no source": ("anthropic", {"type": "image"}, "Field required"),
    "an odd source": ("anthropic", source("image", type="text"), "none of base64, url, file"),
    "an odd type": (
        "anthropic",
        source("image", type="base64", media_type="image/bmp", data="AAAA"),
        "media_type",
    ),
    "a text as PDF": (
        "anthropic",
        source("document", type="base64", media_type="text/plain", data="AAAA"),
        "media_type",
    ),
    "broken base64": (
        "anthropic",
        source("image", type="base64", media_type="image/png", data="A!"),
        "invalid base64",
    ),
    "http": ("anthropic", source("image", type="url", url="http://x.test"), "Only HTTPS"),
    "blank": (
        "anthropic",
        source("document", type="text", media_type="text/plain", data=" "),
        "must have text",
    ),
    "markdown": (
        "anthropic",
        source("document", type="text", media_type="text/markdown", data="x"),
        "text/plain only",
    ),
    "no id": ("anthropic", source("image", type="file"), "file_id"),
    "a foreign shape": ("anthropic", image_url("https://x.test"), "expected tags"),
}


@pytest.mark.parametrize("name", STRICT)
def test_a_strict_provider_refuses(name: str) -> None:
    style, part, says = STRICT[name]
    with pytest.raises(Refusal) as caught:
        check(style, user(part))
    assert says in caught.value.message


@pytest.mark.parametrize("role", ["system", "tool", "assistant"])
def test_a_strict_openai_takes_media_from_users_alone(role: str) -> None:
    message = {"role": role, "content": [image_url("https://x.test")], "tool_call_id": "a"}
    if role != "tool":
        del message["tool_call_id"]
    with pytest.raises(Refusal, match=f"role '{role}' takes no content of type 'image_url'"):
        check("openai", [{"role": "user", "content": "x"}, message])


def test_a_strict_anthropic_takes_only_text_in_an_error() -> None:
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [TAKEN["an image"][2]]}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    check("anthropic", messages)
    result["is_error"] = True
    with pytest.raises(Refusal, match='must be type "text"'):
        check("anthropic", messages)


# ---------------------------------------------------------------- any mix

blobs = st.binary(min_size=1, max_size=30)
images = st.builds(
    lambda data, kind: Part.image(data, media_type=kind),
    blobs,
    st.sampled_from(["image/png", "image/webp", "image/tiff"]),
)
files = st.builds(
    lambda data, kind: Part.file(data, media_type=kind),
    st.one_of(blobs, st.just(b"text")),
    st.sampled_from(["application/pdf", "text/plain", "text/csv"]),
)
sounds = st.builds(
    lambda data, word: Part.audio(data, format=word), blobs, st.sampled_from(["wav", "flac"])
)
web = st.sampled_from(
    [
        Part.image("https://x.test/a"),
        Part.file("https://x.test/a.pdf"),
        Part.file("https://x.test/a.txt"),
        Part.audio("https://x.test/a.wav"),
    ]
)
texts = st.builds(Part.text, st.text(max_size=5))
own = st.one_of(texts, images, files, sounds, web)
foreign = st.sampled_from([form for form, _ in FOREIGN.values()])
prompts = st.lists(st.one_of(own, foreign, st.text(max_size=5)), min_size=1, max_size=4)


def takes(style: str, content: Any) -> bool:
    try:
        require_takeable(content, style)
    except ConfigError:
        return False
    return True


@given(prompts, st.lists(own, min_size=1, max_size=4), st.booleans())
def test_any_mix_is_taken_by_a_strict_provider_or_refused_before(
    prompt: list[Any], given_parts: list[Part], is_error: bool
) -> None:
    content = content_of(prompt)
    result = content_of_result(ToolResult.ok(given_parts), 20)
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    history: list[Mapping[str, Any]] = [
        {"role": "user", "content": content},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": result, "_is_error": is_error},
    ]
    for style in STYLES:
        told = sent(style, *history)
        check(style, told)
        refused = "that this provider does not take" in dumps(sent(style, history[0]))
        assert takes(style, content) is not refused


@given(st.lists(own, min_size=1, max_size=4))
def test_every_byte_of_what_is_taken_arrives(mix: list[Part]) -> None:
    for style in STYLES:
        for part in (p for p in mix if p.size_bytes and p.kind in ("image", "audio")):
            if takes(style, content_of([part])):
                assert _payload(part.to_dict()) in dumps(user_parts(style, part))


def _payload(stored: dict[str, Any]) -> str:
    find: dict[str, Callable[[Any], str]] = {
        "image_url": lambda body: body["url"].partition(",")[2],
        "input_audio": lambda body: body["data"],
    }
    return find[stored["type"]](stored[stored["type"]])
