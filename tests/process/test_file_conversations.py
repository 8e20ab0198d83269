"""Conversations in files, shared by processes: nothing lost, and nothing half written."""

from __future__ import annotations

import os
import random
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.process.child import Child, running
from toolnexus.stores.conversations import FileConversationStore

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs file locks and signals")

STORE = """
    from toolnexus.cancel import CancelToken
    from toolnexus.clock import RealClock
    from toolnexus.stores.conversations import FileConversationStore
    store = FileConversationStore(sys.argv[1], fsync=False)
"""


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def finished(child: Child) -> None:
    child.end()
    assert (child.process.returncode, child.errors) == (0, "")


def test_four_processes_that_ask_on_one_id_under_its_lock_lose_no_turn(tmp_path: Path) -> None:
    script = (
        STORE
        + """
    sys.stdin.readline()
    for turn in range(25):
        with store.hold_conversation("u1", CancelToken(), RealClock()):
            history = store.get("u1")
            history.append({"role": "user", "content": f"{sys.argv[2]} {turn}"})
            store.save("u1", history)
    """
    )
    with ExitStack() as stack:
        children = [
            stack.enter_context(running(script, str(tmp_path), str(number)))
            for number in range(4)
        ]
        for child in children:
            child.go_on()
        for child in children:
            finished(child)

    said = [one["content"] for one in FileConversationStore(tmp_path).get("u1")]
    assert sorted(said) == sorted(
        f"{number} {turn}" for number in range(4) for turn in range(25)
    )
    for number in range(4):
        own = [one for one in said if one.startswith(f"{number} ")]
        assert own == [f"{number} {turn}" for turn in range(25)]


def test_processes_that_save_one_id_without_its_lock_leave_one_of_their_transcripts(
    tmp_path: Path,
) -> None:
    script = (
        STORE
        + """
    sys.stdin.readline()
    for turn in range(50):
        length = 1 + (turn + int(sys.argv[2])) % 7
        message = {"role": "user", "content": f"{sys.argv[2]} {turn}" * 500}
        store.save("u1", [message] * length)
        for one in (store.get("u1"),):
            assert one == [one[0]] * len(one), "two transcripts were mixed"
    """
    )
    with ExitStack() as stack:
        children = [
            stack.enter_context(running(script, str(tmp_path), str(number)))
            for number in range(3)
        ]
        for child in children:
            child.go_on()
        for child in children:
            finished(child)


@pytest.mark.parametrize("seed", range(8))
def test_a_process_killed_in_the_midst_of_its_saves_leaves_one_of_them(
    tmp_path: Path, seed: int
) -> None:
    script = (
        STORE
        + """
    history = [{"role": "user", "content": "0"}]
    store.save("u1", history)
    for turn in range(1, 100_000):
        # Every third one rewrites a part of what was there.
        del history[max(1, len(history) - turn % 3) :]
        history += [{"role": "user", "content": str(turn) * 3_000}] * (1 + turn % 4)
        store.save("u1", history)
        say(str(turn))
    """
    )
    chance = random.Random(seed)
    with running(script, str(tmp_path)) as child:
        for turn in range(1, chance.randint(2, 40)):
            child.expect(str(turn))
        for _ in range(chance.randint(0, 20_000)):
            pass  # some way into one of the next saves
        os.kill(child.process.pid, signal.SIGKILL)
        child.process.wait()
        told = [line for line in child.stdout.read().split("\n") if line]

    last = int(told[-1]) if told else turn
    store = FileConversationStore(tmp_path)
    got = store.get("u1")
    # What was told of is there; the save in progress may have been committed.
    assert got in (transcript_after(last), transcript_after(last + 1))
    store.save("u1", [*got, user("on")])
    assert store.get("u1") == [*got, user("on")]


def transcript_after(last: int) -> list[dict[str, str]]:
    history = [user("0")]
    for turn in range(1, last + 1):
        del history[max(1, len(history) - turn % 3) :]
        history += [user(str(turn) * 3_000)] * (1 + turn % 4)
    return history


def test_a_process_that_is_killed_gives_its_lock_back(tmp_path: Path) -> None:
    script = (
        STORE
        + """
    with store.hold_conversation("u1", CancelToken(), RealClock()):
        say("held")
        sys.stdin.readline()
    """
    )
    waiting = (
        STORE
        + """
    say("ready")
    with store.hold_conversation("u1", CancelToken(), RealClock()):
        say("mine")
    """
    )
    with running(script, str(tmp_path)) as holder, running(waiting, str(tmp_path)) as waiter:
        holder.expect("held")
        waiter.expect("ready")
        os.kill(holder.process.pid, signal.SIGKILL)
        waiter.expect("mine")
        finished(waiter)


def test_a_forked_child_keeps_no_lock_that_its_parent_gives_back(tmp_path: Path) -> None:
    script = (
        STORE
        + """
    with store.hold_conversation("u1", CancelToken(), RealClock()):
        child = os.fork()
        if child == 0:
            sys.stdin.readline()
            os._exit(0)
    with store.hold_conversation("u1", CancelToken(), RealClock()):
        say("again")
    os.waitpid(child, 0)
    """
    )
    with running(script, str(tmp_path)) as child:
        child.expect("again")
        child.go_on()
        finished(child)


def test_a_full_disk_leaves_the_transcript_as_it_was(tmp_path: Path) -> None:
    script = (
        STORE
        + """
    import resource, signal
    from pathlib import Path
    from toolnexus import StoreError
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    path = Path(sys.argv[1], "u1.jsonl")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))

    def refused(messages):
        try:
            store.save("u1", messages)
        except StoreError as error:
            text = str(error)
            assert str(path) in text and "canary" not in text, text
            return text
        raise AssertionError("it was saved")

    assert "bytes could be written" in refused([{"role": "user", "content": "canary" * 500}])
    assert os.listdir(sys.argv[1]) == [], "an empty file is left"
    small = [{"role": "user", "content": "small"}]
    store.save("u1", small)
    before = path.read_bytes()
    refused([*small, {"role": "user", "content": "canary" * 500}])
    assert path.read_bytes() == before
    refused([{"role": "user", "content": "canary" * 500}])
    assert store.get("u1") == small
    store.save("u1", [*small, *small])
    assert store.get("u1") == [*small, *small]
    """
    )
    with running(script, str(tmp_path)) as child:
        finished(child)


def test_without_file_locks_it_warns_and_works_in_one_process(tmp_path: Path) -> None:
    script = (
        """
    import importlib, logging
    from toolnexus.stores import conversations, files
    sys.modules["fcntl"] = None  # as on Windows
    importlib.reload(files)
    importlib.reload(conversations)
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    """
        + STORE
        + """
    store.save("u1", [{"role": "user", "content": "hi"}])
    with store.hold_conversation("u1", CancelToken(), RealClock()):
        store.save("u1", [{"role": "user", "content": "ho"}])
    assert [one["content"] for one in store.get("u1")] == ["ho"]
    assert store.delete("u1") and store.ids() == []
    """
    )
    with running(script, str(tmp_path)) as child:
        child.expect("no file locks here: keep each conversation to one process")
        finished(child)
