"""Output stores: what is put comes back, by its reference and by nothing else."""

from __future__ import annotations

import os
import re
import stat
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import LIMIT
from toolnexus import ConfigError, StoreError, ToolContext, ToolResult
from toolnexus.schema import faults
from toolnexus.stores import files
from toolnexus.stores.outputs import (
    FileOutputStore,
    MemoryOutputStore,
    OutputStore,
    ReadOutput,
)
from toolnexus.toolspec import require_tool


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> OutputStore:
    if request.param == "memory":
        return MemoryOutputStore()
    return FileOutputStore(tmp_path / "outputs", fsync=False)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.text(st.characters()))
def test_any_text_comes_back_as_it_went(store: OutputStore, text: str) -> None:
    assert store.get(store.put(text)) == text


def test_line_ends_are_not_touched(store: OutputStore) -> None:
    text = "a\r\nb\rc\n\x00\ufeff\u2028"

    assert store.get(store.put(text)) == text


def test_each_put_has_a_reference_of_its_own_that_tells_nothing_of_the_text(
    store: OutputStore,
) -> None:
    references = [store.put("the same text") for _ in range(100)]

    assert len(set(references)) == 100
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in references)


@pytest.mark.parametrize(
    "reference",
    [
        "",
        "..",
        "../secret",
        "/etc/passwd",
        "0" * 32,
        "0" * 32 + "\n",
        "a\x00b",
        "\ud800",
        "0" * 31 + "/",
        "x" * 10_000,
    ],
)
def test_an_unknown_reference_is_none_whatever_it_looks_like(
    store: OutputStore, tmp_path: Path, reference: str
) -> None:
    (tmp_path / "secret").write_text("no business of anybody's")
    (tmp_path / "secret.txt").write_text("no business of anybody's")
    store.put("something else")

    assert store.get(reference) is None


def test_a_reference_in_capitals_is_another_one(store: OutputStore) -> None:
    reference = store.put("text")

    assert store.get(reference.upper()) is None or reference.isdigit()


def test_threads_put_and_get_side_by_side(store: OutputStore) -> None:
    start = threading.Barrier(8)
    failures: list[str] = []

    def work(number: int) -> None:
        start.wait(LIMIT)
        kept = {store.put(text): text for text in (f"{number}-{i}" * 50 for i in range(20))}
        failures.extend(
            text for reference, text in kept.items() if store.get(reference) != text
        )

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert failures == []


def test_the_memory_is_bounded_and_the_oldest_go_first() -> None:
    size = sys.getsizeof("x" * 1_000)
    store = MemoryOutputStore(max_bytes=3 * size)
    references = [store.put("x" * 1_000) for _ in range(5)]

    assert [store.get(one) is not None for one in references] == [False] * 2 + [True] * 3
    large = store.put("y" * (2 * 1_000))
    assert store.get(large) == "y" * 2_000
    assert [store.get(one) is not None for one in references] == [False] * 4 + [True]


def test_the_memory_never_holds_more_than_its_limit() -> None:
    store = MemoryOutputStore(max_bytes=10_000)
    references = [store.put(letter * 400) for letter in "aé€😀" * 25]
    kept = [text for text in map(store.get, references) if text is not None]

    assert 0 < sum(map(sys.getsizeof, kept)) <= 10_000
    assert kept[-1] == "😀" * 400


def test_a_text_beyond_the_limit_is_refused_and_drives_nothing_out() -> None:
    store = MemoryOutputStore(max_bytes=1_000)
    reference = store.put("small")

    with pytest.raises(
        StoreError, match=r"an output of 5,0\d\d bytes is beyond 1,000"
    ) as caught:
        store.put("canary" + "x" * 4_994)
    assert "canary" not in str(caught.value)
    assert store.get(reference) == "small"


@pytest.mark.parametrize("max_bytes", [0, -1, True, 1.5, "1", None])
def test_a_limit_that_is_no_limit_is_refused(max_bytes: object) -> None:
    with pytest.raises(ConfigError, match=r"max_bytes must be a whole number from 1, not"):
        MemoryOutputStore(max_bytes)  # type: ignore[arg-type]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_reads_what_was_there_and_puts_its_own() -> None:
    store = MemoryOutputStore()
    reference = store.put("from the parent")
    child = os.fork()
    if child == 0:
        is_right = (
            store.get(reference) == "from the parent" and store.get(store.put("x")) == "x"
        )
        os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.get(store.put("y")) == "y"


def test_nobody_is_between_two_steps_while_the_process_forks() -> None:
    store = MemoryOutputStore()

    def is_free() -> bool:
        came: list[bool] = []

        def look() -> None:
            came.append(store._lock.acquire(blocking=False))
            if came[0]:
                store._lock.release()

        thread = threading.Thread(target=look)
        thread.start()
        thread.join(LIMIT)
        return came[0]

    store.before_fork()
    assert not is_free()
    store.after_fork_in_parent()
    assert is_free()


def test_files_are_their_owners_only_and_nothing_else_is_left(tmp_path: Path) -> None:
    store = FileOutputStore(tmp_path / "a" / "b")
    reference = store.put("text")
    (made,) = (tmp_path / "a" / "b").iterdir()

    assert made.name == f"{reference}.txt"
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    assert stat.S_IMODE(made.parent.stat().st_mode) == 0o700


def test_another_process_reads_by_the_reference(tmp_path: Path) -> None:
    reference = FileOutputStore(tmp_path).put("text")

    assert FileOutputStore(tmp_path).get(reference) == "text"


def test_a_file_that_was_deleted_is_not_known_any_more(tmp_path: Path) -> None:
    store = FileOutputStore(tmp_path)
    reference = store.put("text")
    (tmp_path / f"{reference}.txt").unlink()

    assert store.get(reference) is None


def test_a_write_that_fails_names_the_file_and_the_reason(tmp_path: Path) -> None:
    store = FileOutputStore(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    with pytest.raises(StoreError, match=r"cannot write .*gone.*: No such file") as caught:
        store.put("canary")
    assert "canary" not in str(caught.value)
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_a_write_that_cannot_be_put_in_place_leaves_no_trace(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()

    with pytest.raises(IsADirectoryError):
        files.write_whole(tmp_path / "there", b"text", is_synced=True)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    reference = "0" * 32
    (tmp_path / f"{reference}.txt").mkdir()

    with pytest.raises(StoreError, match=rf"cannot read .*{reference}\.txt: Is a directory"):
        FileOutputStore(tmp_path).get(reference)


def test_a_file_that_is_no_text_any_more_is_an_error(tmp_path: Path) -> None:
    store = FileOutputStore(tmp_path)
    reference = store.put("text")
    (tmp_path / f"{reference}.txt").write_bytes(b"ok \xff")

    with pytest.raises(StoreError, match=rf"{reference}\.txt: not UTF-8 at byte 3"):
        store.get(reference)


def test_a_directory_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreError, match=r"cannot make .*file: File exists"):
        FileOutputStore(tmp_path / "file")


# -- the tool ----------------------------------------------------------------------------------


def read(tool: ReadOutput, **args: object) -> ToolResult:
    return tool.execute(args, ToolContext())


def test_it_is_a_tool_whose_schema_takes_what_it_is_asked(store: OutputStore) -> None:
    tool = ReadOutput(store, 1_000)

    assert require_tool(tool) is tool
    assert (tool.name, tool.source) == ("read_output", "builtin")
    assert not faults({"reference": "r"}, tool.input_schema)
    assert not faults({"reference": "r", "offset": 5, "limit": 10}, tool.input_schema)
    assert faults({"offset": 5}, tool.input_schema)
    assert faults({"reference": "r", "offset": -1}, tool.input_schema)


def test_a_short_text_is_read_whole_and_as_it_is(store: OutputStore) -> None:
    result = read(ReadOutput(store, 1_000), reference=store.put("x" * 1_000))

    assert result == ToolResult("x" * 1_000)


def test_part_by_part_the_whole_text_is_read(store: OutputStore) -> None:
    text = "".join(f"{number}," for number in range(2_000))
    tool, reference = ReadOutput(store, 1_000), store.put(text)
    got, offset = "", 0
    while offset < len(text):
        output = read(tool, reference=reference, offset=offset).output
        assert len(output) <= 1_000
        more = re.search(
            r"\n\[\.\.\. characters \d+ to \d+ of \d+; go on with offset=(\d+)", output
        )
        got += output[: more.start()] if more else output
        offset = int(more[1]) if more else len(text)

    assert got == text


def test_a_part_is_what_was_asked_for_and_says_where_it_goes_on(store: OutputStore) -> None:
    reference = store.put("0123456789" * 10)
    result = read(ReadOutput(store, 1_000), reference=reference, offset=5, limit=10)

    assert result.output == (
        "5678901234\n[... characters 5 to 15 of 100; go on with offset=15 ...]"
    )


def test_numbers_written_with_a_point_are_whole_all_the_same(store: OutputStore) -> None:
    reference = store.put("0123456789")

    assert read(ReadOutput(store, 200), reference=reference, offset=8.0).output == "89"


def test_an_unknown_reference_is_an_error_that_quotes_little_of_it(store: OutputStore) -> None:
    result = read(ReadOutput(store, 200), reference="r" * 5_000)

    assert result.is_error
    assert result.output.startswith("unknown output 'rrr")
    assert len(result.output) < 120


def test_beyond_the_end_is_an_error_that_says_where_that_is(store: OutputStore) -> None:
    result = read(ReadOutput(store, 200), reference=store.put("0123456789"), offset=10)

    assert (result.is_error, result.output) == (True, "the output ends at offset 10")


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"reference": 5},
        {"reference": "r", "offset": -1},
        {"reference": "r", "offset": "1"},
        {"reference": "r", "offset": True},
        {"reference": "r", "offset": 1.5},
        {"reference": "r", "limit": 0},
        {"reference": "r", "limit": None},
    ],
)
def test_arguments_that_make_no_sense_are_an_error(
    store: OutputStore, args: dict[str, object]
) -> None:
    result = read(ReadOutput(store, 200), **args)

    assert result.is_error
    assert result.output.startswith("reference is a text")


def test_a_store_that_fails_is_an_error_result_without_the_hosts_paths(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = FileOutputStore(tmp_path)
    (tmp_path / ("0" * 32 + ".txt")).mkdir()
    result = read(ReadOutput(store, 200), reference="0" * 32)

    assert result.is_error
    assert result.output == "the output is there but cannot be read now"
    assert "Is a directory" in caplog.text


def test_what_is_no_store_and_what_is_no_size_is_refused(store: OutputStore) -> None:
    with pytest.raises(ConfigError, match=r"an output store has put and get; 5 has not"):
        ReadOutput(5, 1_000)  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match=r"max_chars must be a whole number from 200, not 199"
    ):
        ReadOutput(store, 199)
