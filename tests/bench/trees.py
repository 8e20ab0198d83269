"""Rows (c) and (e): a fan-out of fifty children, and a cascade of depth fifty."""

from __future__ import annotations

import threading
from collections.abc import Callable

from requests.adapters import HTTPAdapter

from tests.bench.floor import PROMPT, Floor, add, charge
from tests.bench.measure import Ratio, Row, Sample, alternate, ratio, row_of, sample
from tests.bench.server import BenchServer
from tests.bench.turns import runtime_of
from toolnexus import AgentDef, AgentRuntime, Answer, Budget

CHILDREN = 50
LATENCY_MS = 100
IDEAL = 4 * LATENCY_MS / 1000
DEPTHS = (10, 25, 50)

LEAF = AgentDef("leaf", does="adds", tools=[add], model="m")
FAN = AgentDef(
    "fan", team=["leaf"], model="fan", budget=Budget(max_concurrent=CHILDREN), tools=[]
)


def _fan_runtime(url: str) -> AgentRuntime:
    places = CHILDREN + 2
    return runtime_of(url, FAN, LEAF, max_concurrent_turns=places, max_workers=places)


def _fan_out(runtime: AgentRuntime) -> None:
    handle = runtime.spawn(runtime.root, "fan").handle
    result = runtime.run_turn(handle, "Split it up.")
    assert result.status == "done", result
    assert handle.usage_tree == 40 * (2 + 2 * CHILDREN), handle.usage_tree
    runtime.close(handle)


class BareThreads:
    """One post, fifty threads with two posts each, one post: what a pool by hand would do."""

    def __init__(self, url: str) -> None:
        self.floor = Floor(url, "m", add)
        adapter = HTTPAdapter(pool_connections=1, pool_maxsize=CHILDREN)
        self.floor.session.mount("http://", adapter)

    def __call__(self) -> None:
        self.floor.ask([{"role": "user", "content": PROMPT}])
        threads = [threading.Thread(target=self.floor.turn) for _ in range(CHILDREN)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.floor.ask([{"role": "user", "content": PROMPT}])


def fan_rows(server: BenchServer, *, quick: bool) -> list[Row]:
    """Measure (c), with connections that stand and from a cold start."""
    url = server.url(LATENCY_MS, CHILDREN)
    bare = BareThreads(url)
    bare()

    def cold() -> Sample:
        with _fan_runtime(url) as fresh:
            return sample(lambda: _fan_out(fresh))

    def bare_cold() -> Sample:
        fresh = BareThreads(url)
        found = sample(fresh)
        fresh.floor.session.close()
        return found

    with _fan_runtime(url) as warm:
        _fan_out(warm)
        found = alternate(
            {
                "warm": lambda: sample(lambda: _fan_out(warm)),
                "bare": lambda: sample(bare),
                "cold": cold,
                "bare cold": bare_cold,
            },
            rounds=3 if quick else 15,
        )
    against = f"ideal {IDEAL * 1000:.0f} ms; CPU: bare threads"
    lines = [
        ("fan-out of 50, connections stand", "warm", "bare", 1.1),
        ("fan-out of 50, fresh runtime", "cold", "bare cold", None),
        ("bare threads, connections stand", "bare", "bare", None),
        ("bare threads, fresh session", "bare cold", "bare cold", None),
    ]
    out = []
    for what, key, cpu_base, limit in lines:
        to_ideal = ratio(found[key], [Sample(IDEAL, 1.0)] * len(found[key]))
        cpu = ratio(found[key], found[cpu_base]).cpu
        one = Row("c", what, against, to_ideal.wall, None, limit, to_ideal.spread)
        out.append(_with_cpu_note(one, cpu))
    return out


def _with_cpu_note(row: Row, cpu: float) -> Row:
    # The limit is on the wall: CPU has no ideal to stand against.
    return Row(
        row.group, row.what, row.against, row.wall, None, row.limit, row.spread,
        f"CPU {cpu:.2f} of bare threads",
    )  # fmt: skip


def _levels(depth: int) -> list[AgentDef]:
    above = [
        AgentDef(f"level{n}", team=[f"level{n + 1}"], model=f"nest{n}") for n in range(1, depth)
    ]
    return [*above, AgentDef(f"level{depth}", tools=[charge], model="ask")]


def _cascade(server: BenchServer, depth: int) -> tuple[AgentRuntime, Callable[[], Sample]]:
    budget = Budget(max_depth=depth)
    runtime = runtime_of(server.url(), *_levels(depth), budget=budget)

    def resume_leaf() -> Sample:
        handle = runtime.spawn(runtime.root, "level1").handle
        parked = runtime.run_turn(handle, "go")
        assert parked.pending is not None, parked
        assert parked.pending_path is not None
        assert len(parked.pending_path) == depth + 1, parked.pending_path
        answer = Answer(parked.pending.id, ok=True)
        found = sample(lambda: runtime.resume(answer))
        assert handle.last_result is not None
        assert handle.last_result.status == "done", handle.last_result
        runtime.close(handle)
        return Sample(found.wall / depth, found.cpu / depth)

    return runtime, resume_leaf


def cascade_rows(server: BenchServer, *, quick: bool) -> list[Row]:
    """Measure (e): the time per level of a resume at the bottom of a chain."""
    made = {depth: _cascade(server, depth) for depth in DEPTHS}
    floor = Floor(server.url(), "m")
    messages = [{"role": "user", "content": PROMPT}]

    def post() -> Sample:
        found = sample(lambda: floor.ask(messages), 20)
        return Sample(found.wall / 20, found.cpu / 20)

    contenders = {str(depth): work for depth, (_, work) in made.items()}
    for work in (*contenders.values(), post):
        work()
    found = alternate({**contenders, "post": post}, rounds=5 if quick else 31)
    for runtime, _ in made.values():
        runtime.close(runtime.root)
    first = found[str(DEPTHS[0])]
    shallow: Ratio = ratio(first, found["post"])
    out = [row_of("e", "cascade of 10 levels, per level", "one session.post(json=)", shallow)]
    for depth in DEPTHS[1:]:
        deep = ratio(found[str(depth)], first)
        out.append(row_of("e", f"cascade of {depth} levels, per level", "10 levels", deep, 1.2))
    return out
