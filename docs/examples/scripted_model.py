"""A model that needs no key, to try the two web applications beside this file with.

    python scripted_model.py        # at http://127.0.0.1:8900/v1, until Ctrl-C

It speaks as OpenAI does, and understands one thing: "Refund Ann 80 dollars." It calls the tool
`refund` with that, and then says in one line what came of it.
"""

from __future__ import annotations

import argparse
import re
import sys
import threading
from contextlib import suppress

from toolnexus.testing import RecordedRequest, Reply, ScriptedLlm, text, tool_call

MODEL = "gpt-4o-mini"  # what both applications ask for


def say(request: RecordedRequest) -> Reply:
    """Return what the model says. It keeps nothing: all that it knows is in the request."""
    if request.messages[-1]["role"] == "tool":
        result = list(request.tool_results.values())[-1]
        return text(
            f"I {result}." if result.startswith("refunded") else "Nothing was refunded."
        )
    asked = re.search(r"refund (\w+) \$?(\d+)", request.prompt, re.IGNORECASE)
    if asked is None:
        return text('I understand only such as "Refund Ann 80 dollars."')
    return tool_call("refund", {"customer": asked[1], "amount": int(asked[2])})


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, default=8900)
    port = parser.parse_args().port
    try:
        llm = ScriptedLlm(port=port)
    except OSError as error:
        sys.exit(f"port {port}: {error}")
    with llm:
        llm.answer(MODEL, say)
        print(f"{MODEL}, scripted, is at {llm.base_url}", flush=True)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
