"""Conversation stores: copies both ways, whole transcripts, and files that survive a crash."""

from __future__ import annotations

import json
import logging
import stat
import threading
import time
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.conftest import LIMIT
from tests.threads.racing import race
from toolnexus import Cancelled, CancelToken, ConfigError, RealClock, StoreError
from toolnexus.stores import files
from toolnexus.stores.conversations import (
    ConversationStore,
    FileConversationStore,
    MemoryConversationStore,
    lock_of,
)
from toolnexus.testing import VirtualClock

Store: TypeAlias = MemoryConversationStore | FileConversationStore

USER: dict[str, Any] = {"role": "user", "content": "hi"}
CALLS: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ],
    "_origin": "openai localhost m",
}
RESULT: dict[str, Any] = {
    "role": "tool",
    "tool_call_id": "c1",
    "content": "no\u2028 é 😀\n",
    "_is_error": True,
}
TRANSCRIPT: list[dict[str, Any]] = [
    USER,
    CALLS,
    RESULT,
    {"role": "assistant", "content": "bye"},
]

SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([1.0, 0.5, "", "é"])
MESSAGES = st.dictionaries(
    st.sampled_from(["role", "content", "_x"]),
    SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.text(max_size=2), SCALARS),
    max_size=3,
)
TRANSCRIPTS = st.lists(MESSAGES, max_size=4)
FAST = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "memory":
        return MemoryConversationStore()
    return FileConversationStore(tmp_path, fsync=False)


@pytest.fixture
def kept(tmp_path: Path) -> FileConversationStore:
    return FileConversationStore(tmp_path, fsync=False)


def exact(value: object) -> str:
    """Return a text that tells 1 from 1.0 and from true."""
    return json.dumps(value, sort_keys=True)


# -- any store ---------------------------------------------------------------------------------


def test_what_was_saved_is_what_is_got_underscores_and_all(store: Store) -> None:
    store.save("u1", TRANSCRIPT)

    assert isinstance(store, ConversationStore)
    assert store.get("u1") == TRANSCRIPT


def test_an_unknown_id_has_an_empty_transcript(store: Store) -> None:
    assert store.get("nobody") == []
    assert store.ids() == []


def test_who_changes_what_was_saved_changes_nothing_in_the_store(store: Store) -> None:
    mine = json.loads(json.dumps(TRANSCRIPT))
    store.save("u1", mine)
    mine[1]["tool_calls"][0]["function"]["name"] = "changed"
    mine.pop()

    assert store.get("u1") == TRANSCRIPT


def test_who_changes_what_was_got_changes_nothing_in_the_store(store: Store) -> None:
    store.save("u1", TRANSCRIPT)
    got = store.get("u1")
    got[1]["tool_calls"][0]["function"]["name"] = "changed"
    got.clear()

    assert store.get("u1") == TRANSCRIPT


def test_a_message_changed_in_place_is_saved_as_it_is_now(store: Store) -> None:
    mine = json.loads(json.dumps(TRANSCRIPT))
    store.save("u1", mine)
    mine[0]["content"] = "changed"
    store.save("u1", mine)

    assert store.get("u1") == [{"role": "user", "content": "changed"}, *TRANSCRIPT[1:]]


@FAST
@given(TRANSCRIPTS, TRANSCRIPTS, st.integers(0, 4))
@example([{"content": 1}], [{"content": True}], 0)
@example([{"content": 1.0}], [{"content": 1}], 0)
def test_the_last_of_any_saves_is_the_whole_transcript(
    store: Store, first: list[Any], second: list[Any], shared: int
) -> None:
    second = first[:shared] + second
    for transcript in (first, second, second, first):
        store.save("u1", transcript)
        assert exact(store.get("u1")) == exact(transcript)


def test_mappings_and_tuples_are_saved_as_json(store: Store) -> None:
    message: Any = MappingProxyType({"role": "user", "content": ({"type": "text"},)})
    store.save("u1", (message,))

    assert store.get("u1") == [{"role": "user", "content": [{"type": "text"}]}]


def test_a_lone_surrogate_is_kept(store: Store) -> None:
    store.save("u1", [{"role": "user", "content": "cut \ud83d here"}])

    assert store.get("u1") == [{"role": "user", "content": "cut \ud83d here"}]


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def endless() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["a"] = value
    return value


@pytest.mark.parametrize(
    "message",
    [
        {"content": {"canary"}},
        {"content": float("nan"), "a": "canary"},
        {"content": b"canary"},
        {1: "canary"},
        {"content": {None: "canary"}},
        "canary",
        ["canary"],
        deep(300),
        deep(100_000),
        endless(),
    ],
    ids=[
        "set",
        "nan",
        "bytes",
        "key",
        "inner key",
        "text",
        "list",
        "deep",
        "deepest",
        "endless",
    ],
)
def test_what_is_not_json_is_refused_unquoted_and_nothing_is_changed(
    store: Store, message: Any
) -> None:
    with pytest.raises(StoreError, match=r"^message 1 of conversation 'new' ") as caught:
        store.save("new", [USER, message])
    assert store.ids() == []

    store.save("u1", [USER])
    with pytest.raises(StoreError, match=r"^message 1 of conversation 'u1' "):
        store.save("u1", [USER, message])
    assert store.get("u1") == [USER]
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("conversation_id", ["", None, 5, b"u1"])
def test_an_id_that_is_no_text_is_refused(store: Store, conversation_id: Any) -> None:
    for use in (store.get, store.delete, lambda one: store.save(one, [USER])):
        with pytest.raises(ConfigError, match="id is a text that is not empty, not"):
            use(conversation_id)


def test_ids_are_those_of_every_conversation_saved_and_not_deleted(store: Store) -> None:
    names = ["b", "a", "A", "user@example.com", "é/..", "x" * 500, "X" * 500]
    for name in names:
        store.save(name, [USER])
    store.save("empty", [])

    assert store.ids() == sorted([*names, "empty"])
    assert store.delete("a") is True
    assert store.delete("a") is False
    assert store.delete("x" * 500) is True
    assert store.ids() == sorted({*names, "empty"} - {"a", "x" * 500})
    assert store.get("a") == []
    assert store.get("A") == [USER]


def test_sixteen_threads_save_and_get_their_own_conversations(store: Store) -> None:
    def work(number: int) -> list[Any]:
        name, history = f"user-{number}", []
        for turn in range(5):
            history = store.get(name)
            store.save(name, [*history, {"role": "user", "content": f"{number} {turn}"}])
        return history

    given = race(*(lambda number=number: work(number) for number in range(16)))
    assert [one for one in given if isinstance(one, Exception)] == []
    for number in range(16):
        said = [message["content"] for message in store.get(f"user-{number}")]
        assert said == [f"{number} {turn}" for turn in range(5)]


def test_threads_that_save_one_id_at_once_leave_the_transcript_of_one_of_them(
    store: Store,
) -> None:
    transcripts = [
        [{"role": "user", "content": f"{n} {i}"} for i in range(n)] for n in range(8)
    ]
    for _ in range(5):
        race(*(lambda one=one: store.save("u1", one) for one in transcripts))
        assert store.get("u1") in transcripts


def test_the_lock_of_a_store_without_one_excludes_nobody() -> None:
    store = MemoryConversationStore()
    with (
        lock_of(store, "u1", CancelToken(), RealClock()),
        lock_of(store, "u1", CancelToken(), RealClock()),
    ):
        store.save("u1", [USER])


def test_a_lock_that_a_store_has_for_itself_is_not_taken() -> None:
    class Own(MemoryConversationStore):
        lock = threading.Lock()

    with lock_of(Own(), "u1", CancelToken(), RealClock()):
        assert not Own.lock.locked()


# -- files: their names ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("conversation_id", "name"),
    [
        ("u1", "u1"),
        ("order-17_b.2", "order-17_b.2"),
        ("..", "%2e."),
        (".hidden", "%2ehidden"),
        ("../../etc/passwd", "%2e.%2f..%2fetc%2fpasswd"),
        ("a\x00b", "a%00b"),
        ("User", "%55ser"),
        ("é~%", "%c3%a9%7e%25"),
        ("c:\\x", "c%3a%5cx"),
        ("\ud800", "%ed%a0%80"),
    ],
)
def test_a_file_is_named_after_its_conversation(
    kept: FileConversationStore, tmp_path: Path, conversation_id: str, name: str
) -> None:
    kept.save(conversation_id, [USER])

    assert [path.name for path in tmp_path.iterdir()] == [f"{name}.jsonl"]
    assert kept.ids() == [conversation_id]


@given(st.text(st.characters(), min_size=1), st.text(st.characters(), min_size=1))
@example("A", "a")
@example("%41", "A")
@example("x" * 200, "x" * 201)
@example("É" * 100, "é" * 100)
def test_no_two_ids_share_a_file_and_none_leaves_the_directory(one: str, other: str) -> None:
    stem = files.file_stem(one)

    assert len(stem + ".jsonl") < 255
    assert set(stem) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.%~")
    assert not stem.startswith(".")
    assert (stem == files.file_stem(other)) == (one == other)
    assert files.key_of(stem) in (one, None)


def test_what_else_lies_in_the_directory_is_no_conversation(
    kept: FileConversationStore, tmp_path: Path
) -> None:
    kept.save("u1", [USER])
    for name in ("notes.txt", "User.jsonl", "%zz.jsonl", "%ff.jsonl", "x~1.jsonl", ".jsonl"):
        (tmp_path / name).write_text('{"id":"x"}\n')

    assert kept.ids() == ["u1"]


def test_files_and_a_new_directory_are_their_owners_only(tmp_path: Path) -> None:
    store = FileConversationStore(tmp_path / "a" / "b")
    store.save("u1", [USER])
    with store.hold_conversation("u1", CancelToken(), RealClock()):
        modes = {
            path.name: stat.S_IMODE(path.stat().st_mode)
            for path in (tmp_path / "a/b").iterdir()
        }

    assert modes == {"u1.jsonl": 0o600, "u1.lock": 0o600}
    assert stat.S_IMODE((tmp_path / "a/b").stat().st_mode) == 0o700


# -- files: their form -------------------------------------------------------------------------


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def test_a_save_adds_what_is_new_and_touches_nothing_before_it(
    kept: FileConversationStore, tmp_path: Path
) -> None:
    path = tmp_path / "u1.jsonl"
    kept.save("u1", [USER])
    first = path.read_bytes()
    kept.save("u1", [USER, CALLS])
    second = path.read_bytes()
    kept.save("u1", [USER, RESULT])
    third = path.read_bytes()

    assert second.startswith(first)
    assert third.startswith(second)
    forms = [{k: v for k, v in one.items() if k != "crc32"} for one in lines_of(path)]
    assert forms == [
        {"toolnexus": "conversation", "schema": 1, "id": "u1"},
        {"message": USER},
        {"commit": 1},
        {"message": CALLS},
        {"commit": 2},
        {"keep": 1},
        {"message": RESULT},
        {"commit": 2},
    ]


def test_a_save_of_what_is_there_writes_nothing(
    kept: FileConversationStore, tmp_path: Path
) -> None:
    kept.save("u1", TRANSCRIPT)
    before = (tmp_path / "u1.jsonl").read_bytes()
    kept.save("u1", kept.get("u1"))

    assert (tmp_path / "u1.jsonl").read_bytes() == before


def test_the_file_grows_with_the_messages_and_not_with_their_square(
    kept: FileConversationStore, tmp_path: Path
) -> None:
    history: list[Any] = []
    for number in range(200):
        history.append({"role": "user", "content": f"{number:04}" * 10})
        kept.save("u1", history)

    assert (tmp_path / "u1.jsonl").stat().st_size < 200 * 150


@pytest.mark.parametrize("first", [None, [], TRANSCRIPT[:3]], ids=["none", "empty", "some"])
@pytest.mark.parametrize("later", [TRANSCRIPT, [USER], [RESULT, USER]])
def test_cut_at_any_byte_of_the_last_save_the_file_reads_as_before_it(
    kept: FileConversationStore,
    tmp_path: Path,
    first: list[Any] | None,
    later: list[Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "u1.jsonl"
    if first is not None:
        kept.save("u1", first)
    before = path.read_bytes() if path.exists() else b""
    kept.save("u1", later)
    whole = path.read_bytes()

    for cut in range(len(before), len(whole)):
        path.write_bytes(whole[:cut])
        assert kept.get("u1") == (first or []), cut
        assert path.stat().st_size == cut
        kept.save("u1", later)
        assert path.read_bytes() == whole, cut
    cuts = [r for r in caplog.records if "a save that never ended" in r.getMessage()]
    assert len(cuts) == len(whole) - len(before) - 1


@pytest.mark.parametrize("garbage", [b"\x00" * 4096, b"garbage\n", b'{"keep":0}\n{"mess'])
def test_an_uncommitted_tail_of_any_kind_is_ignored_and_then_cut_off(
    kept: FileConversationStore, tmp_path: Path, garbage: bytes
) -> None:
    path = tmp_path / "u1.jsonl"
    kept.save("u1", [USER])
    before = path.read_bytes()
    path.write_bytes(before + garbage)

    assert kept.get("u1") == [USER]
    kept.save("u1", [USER, RESULT])
    assert path.read_bytes().startswith(before + b'{"message"')
    assert kept.get("u1") == [USER, RESULT]


def test_an_empty_file_is_a_conversation_that_has_not_begun(
    kept: FileConversationStore, tmp_path: Path
) -> None:
    (tmp_path / "u1.jsonl").write_bytes(b"")

    assert kept.get("u1") == []
    kept.save("u1", [USER])
    assert kept.get("u1") == [USER]


@pytest.mark.parametrize("number", range(2, 9))
@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"\xff\xfe", b"[]", b"{}", b'{"message":5}', b'{"other":1}', b'{"commit":1}'],
)
def test_a_damaged_line_before_a_commit_is_an_error_that_names_it(
    kept: FileConversationStore, tmp_path: Path, number: int, damage: bytes
) -> None:
    path = tmp_path / "u1.jsonl"
    kept.save("u1", TRANSCRIPT)
    kept.save("u1", [*TRANSCRIPT[:2], USER])
    lines = path.read_bytes().split(b"\n")
    assert len(lines) == 10
    lines[number - 1] = damage
    broken = b"\n".join(lines)
    path.write_bytes(broken)

    for use in (lambda: kept.get("u1"), lambda: kept.save("u1", [USER])):
        with pytest.raises(StoreError, match=rf"u1\.jsonl, line {number}: the line is damaged"):
            use()
    assert path.read_bytes() == broken


@pytest.mark.parametrize("cut", [0, 1])
def test_a_line_changed_or_missing_is_noticed_though_each_line_is_sound(
    kept: FileConversationStore, tmp_path: Path, cut: int
) -> None:
    path = tmp_path / "u1.jsonl"
    kept.save("u1", TRANSCRIPT)
    lines = path.read_bytes().split(b"\n")
    lines[1:2] = [] if cut else [b'{"message":{"role":"user","content":"ho"}}']
    path.write_bytes(b"\n".join(lines))

    told = rf"u1\.jsonl, line {6 - cut}: lines 1 to {5 - cut} are not as they were written"
    with pytest.raises(StoreError, match=told):
        kept.get("u1")


def test_no_error_quotes_a_message(kept: FileConversationStore, tmp_path: Path) -> None:
    path = tmp_path / "u1.jsonl"
    kept.save("u1", [{"role": "user", "content": "canary"}])
    path.write_bytes(path.read_bytes().replace(b'"role"', b'role"'))

    with pytest.raises(StoreError) as caught:
        kept.get("u1")
    assert "canary" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_file_of_a_newer_schema_is_refused_and_left_alone(
    kept: FileConversationStore, tmp_path: Path
) -> None:
    path = tmp_path / "u1.jsonl"
    newer = b'{"toolnexus":"conversation","schema":2,"id":"u1"}\n{"turn":{}}\n{"com'
    path.write_bytes(newer)

    for use in (lambda: kept.get("u1"), lambda: kept.save("u1", [USER])):
        with pytest.raises(
            StoreError, match=r"schema 2 cannot be read by this release \(reads 1\)"
        ):
            use()
    assert path.read_bytes() == newer


@pytest.mark.parametrize(
    ("begin", "told"),
    [
        (b"no conversation", "this is no conversation file"),
        (b"no conversation\n", "this is no conversation file"),
        (b'{"toolnexus":"conversation","schema":2', "this is no conversation file"),
        (b'{"toolnexus":"checkpoint","schema":1,"id":"u1"}\n', "this is no conversation file"),
        (b'{"toolnexus":"conversation","schema":true,"id":"u1"}\n', "schema True cannot"),
        (b'{"toolnexus":"conversation","schema":"1","id":"u1"}\n', "schema '1' cannot"),
        (b'{"toolnexus":"conversation","id":"u1"}\n', "schema None cannot"),
        (b'{"toolnexus":"conversation","schema":1,"id":"u2"}\n', "conversation of another id"),
    ],
)
def test_a_file_that_is_not_of_this_conversation_is_left_alone(
    kept: FileConversationStore, tmp_path: Path, begin: bytes, told: str
) -> None:
    path = tmp_path / "u1.jsonl"
    path.write_bytes(begin)

    for use in (lambda: kept.get("u1"), lambda: kept.save("u1", [USER])):
        with pytest.raises(StoreError, match=rf"u1\.jsonl, line 1: .*{told}"):
            use()
    assert path.read_bytes() == begin


GOLDEN = (
    b'{"toolnexus":"conversation","schema":1,"id":"u1"}\n'
    b'{"message":{"role":"user","content":"hi"}}\n'
    b'{"commit":1,"crc32":3917034358}\n'
    b'{"keep":0}\n'
    b'{"message":{"role":"user","content":"ho"}}\n'
    b'{"commit":1,"crc32":2685348206}\n'
)


def test_a_file_of_the_first_schema_is_read_and_written_to_the_byte(
    kept: FileConversationStore, tmp_path: Path
) -> None:
    path = tmp_path / "u1.jsonl"
    path.write_bytes(GOLDEN)
    assert kept.get("u1") == [{"role": "user", "content": "ho"}]

    path.unlink()
    kept.save("u1", [USER])
    kept.save("u1", [{"role": "user", "content": "ho"}])
    assert path.read_bytes() == GOLDEN


def test_a_directory_that_has_gone_is_an_error_with_its_reason(tmp_path: Path) -> None:
    store = FileConversationStore(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    with pytest.raises(StoreError, match=r"^cannot write .*u1\.jsonl: No such file") as caught:
        store.save("u1", [{"role": "user", "content": "canary"}])
    assert "canary" not in str(caught.value)
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert store.get("u1") == []
    with pytest.raises(StoreError, match=r"^cannot read .*gone: No such file"):
        store.ids()
    with pytest.raises(StoreError, match=r"^cannot lock .*u1\.lock: No such file"):
        store.hold_conversation("u1", CancelToken(), RealClock()).__enter__()


def test_a_file_that_is_a_directory_is_an_error(
    kept: FileConversationStore, tmp_path: Path
) -> None:
    (tmp_path / "u1.jsonl").mkdir()

    for use in (kept.get, lambda one: kept.save(one, [USER]), kept.delete):
        with pytest.raises(
            StoreError, match=r"^cannot (read|write|delete) .*u1\.jsonl: Is a dir"
        ):
            use("u1")


def test_a_deleted_conversation_begins_anew_and_leaves_no_file(
    kept: FileConversationStore, tmp_path: Path
) -> None:
    kept.save("u1", TRANSCRIPT)
    with kept.hold_conversation("u1", CancelToken(), RealClock()):
        pass
    kept.delete("u1")

    assert list(tmp_path.iterdir()) == []
    kept.save("u1", [USER])
    assert kept.get("u1") == [USER]


def test_it_saves_with_fsync_too(tmp_path: Path) -> None:
    store = FileConversationStore(str(tmp_path))
    for transcript in (TRANSCRIPT, TRANSCRIPT, [USER]):
        store.save("u1", transcript)

    assert FileConversationStore(tmp_path).get("u1") == [USER]
    assert store.delete("u1")
    assert repr(store) == f"FileConversationStore({str(tmp_path)!r})"


def test_saves_and_deletes_at_once_leave_a_sound_file(
    kept: FileConversationStore, tmp_path: Path
) -> None:
    for _ in range(20):
        given = race(
            *(lambda: kept.save("u1", TRANSCRIPT) for _ in range(3)),
            *(lambda: kept.delete("u1") for _ in range(3)),
        )
        assert [one for one in given if isinstance(one, Exception)] == []
        assert kept.get("u1") in ([], TRANSCRIPT)
        assert kept.ids() in ([], ["u1"])


def blocked_on(path: Path) -> None:
    """Wait until somebody is blocked by a lock on the file."""
    inode, until = f":{path.stat().st_ino} ", time.monotonic() + LIMIT
    while time.monotonic() < until:
        lines = Path("/proc/locks").read_text().splitlines()
        if any("-> FLOCK" in line and inode in line for line in lines):
            return
        threading.Event().wait(0.005)
    raise AssertionError(f"nobody waits for {path.name}")


on_linux = pytest.mark.skipif(not Path("/proc/locks").exists(), reason="needs /proc/locks")


@on_linux
def test_a_reader_waits_for_a_write_in_progress(
    kept: FileConversationStore, tmp_path: Path
) -> None:
    path = tmp_path / "u1.jsonl"
    kept.save("u1", [USER])
    got: list[Any] = []
    descriptor = files.take(path)
    thread = threading.Thread(target=lambda: got.append(kept.get("u1")))
    thread.start()
    blocked_on(path)
    path.write_bytes(path.read_bytes() + b"as no reader may see it\n")
    files.give_back(descriptor)
    thread.join(LIMIT)

    assert got == [[USER]]


@on_linux
def test_a_save_that_waited_for_a_delete_makes_a_new_file(
    kept: FileConversationStore, tmp_path: Path
) -> None:
    path = tmp_path / "u1.jsonl"
    kept.save("u1", [RESULT])
    descriptor = files.take(path)
    thread = threading.Thread(target=lambda: kept.save("u1", [USER]))
    thread.start()
    blocked_on(path)
    kept.delete("u1")
    files.give_back(descriptor)
    thread.join(LIMIT)

    assert kept.get("u1") == [USER]


# -- files: the lock ---------------------------------------------------------------------------


def locker(store: FileConversationStore, cancel: CancelToken, clock: VirtualClock) -> Any:
    """Start a thread that takes the lock; return it, and what came of it."""
    came: list[object] = []

    def take() -> None:
        try:
            with store.hold_conversation("u1", cancel, clock):
                came.append("held")
        except Exception as error:
            came.append(error)

    thread = threading.Thread(target=take, name="locker")
    thread.start()
    return thread, came


def test_the_lock_waits_for_who_holds_it(tmp_path: Path) -> None:
    store, clock = FileConversationStore(tmp_path), VirtualClock()
    with FileConversationStore(tmp_path).hold_conversation("u1", CancelToken(), clock):
        thread, came = locker(store, CancelToken(), clock)
        clock.wait_parked(1)
        clock.advance(1)
        clock.wait_parked(1)
        assert came == []
    clock.advance(1)
    thread.join(LIMIT)
    assert came == ["held"]


def test_who_is_cancelled_leaves_the_queue_at_once(tmp_path: Path) -> None:
    store, clock, cancel = FileConversationStore(tmp_path), VirtualClock(), CancelToken()
    with store.hold_conversation("u1", CancelToken(), clock):
        thread, came = locker(store, cancel, clock)
        clock.wait_parked(1)
        cancel.cancel("no longer wanted")
        thread.join(LIMIT)
    assert [str(one) for one in came] == ["no longer wanted"]
    assert isinstance(came[0], Cancelled)


def test_a_deadline_ends_the_wait_too(tmp_path: Path) -> None:
    store, clock, cancel = FileConversationStore(tmp_path), VirtualClock(), CancelToken()
    cancel.set_deadline(clock, clock.monotonic() + 5, "too late")
    with store.hold_conversation("u1", CancelToken(), clock):
        thread, came = locker(store, cancel, clock)
        clock.wait_parked(1)
        clock.advance(6)
        thread.join(LIMIT)
    assert [str(one) for one in came] == ["too late"]


def test_who_is_cancelled_before_does_not_take_a_free_lock(tmp_path: Path) -> None:
    store, cancel = FileConversationStore(tmp_path), CancelToken()
    cancel.cancel()

    with pytest.raises(Cancelled), store.hold_conversation("u1", cancel, VirtualClock()):
        raise AssertionError("it was taken")


def test_the_lock_is_given_back_when_the_ask_fails(tmp_path: Path) -> None:
    store = FileConversationStore(tmp_path)
    with (
        pytest.raises(OSError, match="of the ask"),
        store.hold_conversation("u1", CancelToken(), RealClock()),
    ):
        raise OSError("of the ask")

    with store.hold_conversation("u1", CancelToken(), VirtualClock()):
        store.save("u1", [USER])  # under the lock as without it
    assert store.get("u1") == [USER]


def test_locks_of_two_conversations_are_two(tmp_path: Path) -> None:
    store = FileConversationStore(tmp_path)
    with (
        lock_of(store, "u1", CancelToken(), VirtualClock()),
        lock_of(store, "u2", CancelToken(), VirtualClock()),
    ):
        pass


def test_a_delete_leaves_a_lock_alone_that_somebody_holds(tmp_path: Path) -> None:
    store, clock = FileConversationStore(tmp_path), VirtualClock()
    with store.hold_conversation("u1", CancelToken(), clock):
        store.save("u1", [USER])
        assert store.delete("u1")
        thread, came = locker(store, CancelToken(), clock)
        clock.wait_parked(1)
        assert came == []
    clock.advance(1)
    thread.join(LIMIT)
    assert came == ["held"]


def test_locks_and_deletes_at_once_never_let_two_in(tmp_path: Path) -> None:
    store, clock = FileConversationStore(tmp_path, fsync=False), RealClock()
    inside, most, guard = 0, 0, threading.Lock()

    def ask() -> None:
        nonlocal inside, most
        for _ in range(60):
            with store.hold_conversation("u1", CancelToken(), clock):
                with guard:
                    inside += 1
                    most = max(most, inside)
                store.save("u1", [USER])
                store.get("u1")
                with guard:
                    inside -= 1

    def delete() -> None:
        for _ in range(600):
            store.delete("u1")

    given = race(ask, ask, ask, ask, delete, delete)
    assert [one for one in given if isinstance(one, Exception)] == []
    assert most == 1


def test_a_log_names_no_message(
    kept: FileConversationStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept.save("u1", [{"role": "user", "content": "canary"}])
    with (tmp_path / "u1.jsonl").open("ab") as file:
        file.write(b'{"message":{"role":"user","content":"canary')
    with caplog.at_level(logging.DEBUG):
        kept.save("u1", [USER])

    assert "43 bytes of a save that never ended are cut off" in caplog.text
    assert "canary" not in caplog.text
