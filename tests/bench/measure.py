"""Alternating measurement: contenders take turns in small batches, ratios are per round."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import attrs


@attrs.frozen
class Sample:
    """One batch: seconds on the wall, and of this process's CPU (all its threads)."""

    wall: float
    cpu: float


@attrs.frozen
class Ratio:
    """Medians of the ratios of all rounds, and the middle half of the wall ratios."""

    wall: float
    cpu: float
    spread: tuple[float, float]


@attrs.frozen
class Row:
    """One line of the table. `limit` None: reported, nothing was promised."""

    group: str
    what: str
    against: str
    wall: float | None = None
    cpu: float | None = None
    limit: float | None = None
    spread: tuple[float, float] | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """`ok` or `short`; "" for a row without a limit."""
        if self.limit is None:
            return ""
        worst = max(value for value in (self.wall, self.cpu) if value is not None)
        return "ok" if worst <= self.limit else "short"


def sample(work: Callable[[], object], times: int = 1) -> Sample:
    """Do `work` so many times and return what it took."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(times):
        work()
    return Sample(time.perf_counter() - wall, time.process_time() - cpu)


def alternate(
    contenders: Mapping[str, Callable[[], Sample]], rounds: int
) -> dict[str, list[Sample]]:
    """Let each contender give one sample a round; who begins moves on by one each round."""
    names = list(contenders)
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for turn in range(rounds):
        gc.collect()
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            samples[name].append(contenders[name]())
    return samples


def compare(
    contenders: Mapping[str, Callable[[], object]], *, rounds: int, batch: int
) -> dict[str, list[Sample]]:
    """Alternate batches of plain callables, after one unmeasured batch of each."""
    for work in contenders.values():
        sample(work, batch)
    bound = {name: (lambda work=work: sample(work, batch)) for name, work in contenders.items()}
    return alternate(bound, rounds)


def ratio(samples: Sequence[Sample], base: Sequence[Sample]) -> Ratio:
    """Return the medians over the rounds of `samples` against `base`."""
    walls = [one.wall / other.wall for one, other in zip(samples, base, strict=True)]
    cpus = [one.cpu / max(other.cpu, 1e-9) for one, other in zip(samples, base, strict=True)]
    low, _, high = statistics.quantiles(walls, n=4)
    return Ratio(statistics.median(walls), statistics.median(cpus), (low, high))


def row_of(
    group: str,
    what: str,
    against: str,
    found: Ratio,
    limit: float | None = None,
    note: str = "",
) -> Row:
    """Return the table's line for a ratio."""
    return Row(group, what, against, found.wall, found.cpu, limit, found.spread, note)


def render(rows: Sequence[Row]) -> str:
    """Return the rows as one Markdown table."""
    head = ["", "row", "against", "wall", "CPU", "middle half (wall)", "limit", "", "note"]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        spread = "" if row.spread is None else f"{row.spread[0]:.2f}-{row.spread[1]:.2f}"
        lines.append(
            [
                row.group,
                row.what,
                row.against,
                "" if row.wall is None else f"{row.wall:.2f}",
                "" if row.cpu is None else f"{row.cpu:.2f}",
                spread,
                "" if row.limit is None else f"{row.limit:g}",
                row.verdict,
                row.note,
            ]
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
