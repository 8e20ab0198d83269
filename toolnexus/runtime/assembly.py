"""Assembly: what a runtime consists of, put together."""

from __future__ import annotations

import attrs

from toolnexus.runtime.admission import Admission
from toolnexus.runtime.announcing import Announcing
from toolnexus.runtime.answers import Answers
from toolnexus.runtime.claims import Claims
from toolnexus.runtime.closing import Closing
from toolnexus.runtime.continuing import StoredAnswers
from toolnexus.runtime.core import Core
from toolnexus.runtime.delegation import Delegation
from toolnexus.runtime.durable import Durable, keeper_for
from toolnexus.runtime.letters import Letters
from toolnexus.runtime.lifetime import Lifetime
from toolnexus.runtime.options import RuntimeOptions
from toolnexus.runtime.outcomes import Outcomes
from toolnexus.runtime.recovering import Recovering
from toolnexus.runtime.settling import Settling
from toolnexus.runtime.spawning import Spawning
from toolnexus.runtime.streaming import Streaming
from toolnexus.runtime.turns import Turns
from toolnexus.runtime.waiting import Waiting


@attrs.frozen(kw_only=True)
class Parts:
    """What the verbs hand on to; `durable` is None without a store."""

    core: Core
    closing: Closing
    spawning: Spawning
    turns: Turns
    answers: Answers
    outcomes: Outcomes
    streaming: Streaming
    durable: Durable | None
    lifetime: Lifetime


def assemble(options: RuntimeOptions) -> Parts:
    """Put a runtime together.

    Raises:
        ConfigError: The registry does not fit, or the store cannot be one.
    """
    core = Core(options)
    admission = Admission(core)
    settling = Settling(core, admission)
    waiting = Waiting(core)
    keeper = keeper_for(core, admission)
    closing = Closing(core, settling)
    spawning = Spawning(core, admission, settling, closing)
    delegation = Delegation(core, waiting, spawning, closing)
    turns = Turns(core, settling, closing, delegation)
    core.execute = turns.execute
    answers = Answers(core, settling, spawning, waiting)
    outcomes = Outcomes(core, spawning, waiting)
    announcing = Announcing(core, answers, turns.deadlines)
    core.announce = announcing.announce
    durable = None
    if keeper is not None:
        letters = Letters(core, keeper, answers, spawning, closing, waiting)
        answers.stored = StoredAnswers(core, keeper, Claims(core, keeper), letters, answers)
        recovering = Recovering(core, admission, settling, closing, keeper)
        durable = Durable(core, keeper, letters, recovering, announcing)
    return Parts(
        core=core,
        closing=closing,
        spawning=spawning,
        turns=turns,
        answers=answers,
        outcomes=outcomes,
        streaming=Streaming(core, spawning, waiting, outcomes, answers),
        durable=durable,
        lifetime=Lifetime(core, settling, closing, turns, announcing, durable),
    )
