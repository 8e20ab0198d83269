"""What errors mask: every token that a session carries or carried, accounts, and no words."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import requests

from tests.conftest import MakeClient
from tests.http.raw_servers import Peer, RawServer
from tests.http.test_client_errors import everything_shown
from tests.http.test_shaping import WAYS, Way
from toolnexus import LlmError
from toolnexus.testing import RecordedRequest, Reply, ScriptedLlm, status

OLD, NEW = "canary+Old/4711abc", "canary+New/0815xyz"


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with requests.Session() as made:
        yield made


@WAYS
def test_a_sessions_renewed_token_is_masked_and_the_old_one_too(
    llm: ScriptedLlm, make_client: MakeClient, session: requests.Session, way: Way
) -> None:
    session.headers["Authorization"] = f"Bearer {OLD}"
    client = make_client(session=session, api_key=None)
    llm.say("m", status(401, f"expired: {OLD}"))
    with pytest.raises(LlmError, match=r"^LLM 401: expired: \*\*\*$"):
        way(client)
    session.headers["Authorization"] = f"Bearer {NEW}"
    llm.say("m", status(401, f"{NEW} comes after {OLD}"))
    with pytest.raises(LlmError) as caught:
        way(client)

    assert llm.requests[-1].headers["authorization"] == f"Bearer {NEW}"
    assert str(caught.value) == "LLM 401: *** comes after ***"
    for token in (OLD, NEW):
        assert token not in everything_shown(caught.value)


@WAYS
def test_a_token_that_is_renewed_while_its_request_is_out_is_masked(
    make_client: MakeClient,
    session: requests.Session,
    serve: Callable[..., RawServer],
    way: Way,
) -> None:
    def play(peer: Peer) -> None:
        peer.request()
        session.headers["Authorization"] = f"Bearer {NEW}"
        peer.reply(f"no: {OLD} {NEW}".encode(), 401)

    session.headers["Authorization"] = f"Bearer {OLD}"
    client = make_client(session=session, api_key=None, base_url=serve(play).base_url)
    with pytest.raises(LlmError, match=r"^LLM 401: no: \*\*\* \*\*\*$"):
        way(client)


def test_the_token_that_a_request_was_sent_with_is_masked_however_often_it_is_renewed(
    llm: ScriptedLlm, make_client: MakeClient, session: requests.Session
) -> None:
    tokens = [f"canary+{number}/4711abc" for number in range(4)]
    session.headers["Authorization"] = f"Bearer {tokens[0]}"

    def refuse(request: RecordedRequest) -> Reply:
        # Renewed while this one is out: it is neither the first nor the current one any more.
        session.headers["Authorization"] = f"Bearer {tokens[len(llm.requests)]}"
        return status(401, f"no: {request.headers['authorization']}")

    llm.answer("m", refuse)
    client = make_client(session=session, api_key=None)
    for _ in tokens[1:]:
        with pytest.raises(LlmError, match=r"^LLM 401: no: \*\*\*$"):
            client.run("hi")


@pytest.mark.parametrize("token", ["abcd/efgh=ijk", "abcdefgh==", "a=b=c=d=e=f=g"])
def test_a_token_with_a_sign_in_it_is_masked_whole(
    llm: ScriptedLlm, make_client: MakeClient, token: str
) -> None:
    llm.say("m", status(401, f"no: <{token}>"))
    client = make_client(api_key=None, headers={"Authorization": f"Bearer {token}"})
    with pytest.raises(LlmError, match=r"^LLM 401: no: <\*\*\*>$"):
        client.run("hi")


def test_a_token_that_begins_as_an_older_one_did_is_masked_whole(
    llm: ScriptedLlm, make_client: MakeClient, session: requests.Session
) -> None:
    client = make_client(session=session, api_key=None)
    for token in ("canary+abc", "canary+abcdefgh"):
        session.headers["Authorization"] = f"Bearer {token}"
        llm.say("m", status(401, f"no: <{token}>"))
        with pytest.raises(LlmError, match=r"^LLM 401: no: <\*\*\*>$"):
            client.run("hi")


@pytest.mark.parametrize(
    "words",
    [
        "Unknown parameter: 'user_location'",
        "the user-provided schema is a key-value map",
        "proj_settings and org_settings differ",
        "user_message_content, key_with_many_words, org-wide-policy",
        "sk_something is no parameter",
        "acct_holder_name",
    ],
)
@WAYS
def test_ordinary_words_stay_readable(
    llm: ScriptedLlm, make_client: MakeClient, way: Way, words: str
) -> None:
    llm.say("m", status(400, words))
    with pytest.raises(LlmError) as caught:
        way(make_client())

    assert str(caught.value) == f"LLM 400: {words}"


@pytest.mark.parametrize(
    "identifier",
    [
        "user-abcdef123456",
        "user_abcdeF",
        "org-ABCDEFGHIJKL",
        "org_settings7",
        "proj_abcdefgHijk",
        "acct_1abcdef",
        "key-a1b2c3d4",
        "pk_live_abcDEF",
        "sk-proj-with-words-and-1-digit",
    ],
)
def test_an_identifier_with_a_digit_or_a_capital_is_masked(
    llm: ScriptedLlm, make_client: MakeClient, identifier: str
) -> None:
    llm.say("m", status(400, f"'user_location' of '{identifier}'"))
    with pytest.raises(LlmError) as caught:
        make_client().run("hi")

    assert str(caught.value) == "LLM 400: 'user_location' of '***'"
