"""A Flask application around an agent that asks before it refunds.

    pip install 'toolnexus[flask]' gunicorn
    export FLASK_SECRET_KEY=any-secret OPENAI_API_KEY=...
    flask run                                       # or, with four workers:
    gunicorn -w 4 --preload 'app:create_app()'

Without a key: `python ../scripted_model.py`, whose address goes into FLASK_TOOLNEXUS__base_url.
Settings come from the environment: FLASK_TOOLNEXUS__base_url for another endpoint,
FLASK_TOOLNEXUS__default_model, and so on for any option of the runtime.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Any

from desk import desk
from flask import (
    Flask,
    abort,
    current_app,
    flash,
    redirect,
    render_template,
    request,
    session,
    url_for,
)
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import HTTPException

from toolnexus import Answer, Handle, PendingRequest, ToolnexusError
from toolnexus.contrib.flask import Toolnexus
from toolnexus.contrib.web import answer_from, request_dict, status_of


def may_answer(who: str, _pending: PendingRequest) -> bool:
    """Say who may answer what: here those that APPROVERS names; nobody named is everybody."""
    approvers = current_app.config["APPROVERS"]
    return not approvers or who in approvers


SHOWN = 10  # how many runs a browser's page has

agents = Toolnexus(registry=[desk], authorize=may_answer)


def create_app() -> Flask:
    """Make the application. Nothing is started: each worker makes its runtime when asked."""
    app = Flask(__name__)
    app.config["APPROVERS"] = []
    app.config["REFUNDS"] = "refunds.db"
    app.config["TOOLNEXUS"] = {
        "base_url": "https://api.openai.com/v1",
        "default_model": "gpt-4o-mini",
        "store": "sqlite:///runs.db",  # of all workers
    }
    app.config.from_prefixed_env()
    if not app.secret_key:
        raise RuntimeError("set FLASK_SECRET_KEY: all workers sign the page's cookie with it")
    agents.init_app(app)
    add_errors(app)
    add_api(app)
    add_page(app)
    return app


def principal() -> str:
    """Return who sends this request: whom the host, such as a proxy, has logged in."""
    return request.remote_user or "nobody"


def started(prompt: str) -> Handle:
    """Start a run. It goes on without this request."""
    rt = agents.runtime
    handle = rt.spawn(rt.root, "desk").handle
    why = rt.wake(handle, prompt).error  # as where this worker is about to end
    if why is not None:
        rt.close(handle)  # it would stay idle, and be waited for in vain
        abort(503, why)
    return handle


def report(handle: Handle) -> dict[str, Any]:
    """Say how a run stands; one that is done is closed, and stays readable."""
    rt = agents.runtime
    result = rt.wait_on(handle, timeout=0)
    is_running = result.status == "timeout"  # of the wait, not of the run
    if result.status == "done":
        rt.close(handle)
    return {
        "id": handle.id,
        "status": "running" if is_running else result.status,
        "text": "" if is_running else result.text,
        "open": [request_dict(one) for one in rt.pending(under=handle)],
    }


def report_by_id(run_id: str) -> dict[str, Any] | None:
    """Say how a run stands, also one whose agent is gone by now; None where it was pruned."""
    try:
        handle = agents.runtime.handle(run_id)
        return None if handle is None else report(handle)
    except ToolnexusError as error:
        return {"id": run_id, "status": "error", "text": str(error), "open": []}


# -- the API ----------------------------------------------------------------------------------
# It takes JSON alone, which another site's form cannot send.


def add_errors(app: Flask) -> None:
    """Let errors be JSON for programs, and pages for people."""

    @app.errorhandler(ToolnexusError)
    def refused(error: ToolnexusError) -> ResponseReturnValue:
        return {"error": str(error)}, status_of(error)

    @app.errorhandler(HTTPException)
    def failed(error: HTTPException) -> ResponseReturnValue:
        if request.path.startswith(("/runs", "/requests")):
            return {"error": error.description}, error.code or 500
        return error


def add_api(app: Flask) -> None:
    """Add what programs use."""

    @app.post("/runs")
    def start_run() -> ResponseReturnValue:
        given = request.get_json()
        prompt = given.get("prompt") if isinstance(given, dict) else None
        if not isinstance(prompt, str) or not prompt:
            return {"error": "give a prompt, a text"}, 400
        return report(started(prompt)), 202

    @app.get("/runs")
    def list_runs() -> ResponseReturnValue:
        views = agents.runtime.list()
        return {"runs": [{"id": one.id, "state": one.state.value} for one in views]}

    @app.get("/runs/<path:run_id>")
    def show_run(run_id: str) -> ResponseReturnValue:
        handle = agents.runtime.handle(run_id)
        if handle is None or handle.parent is None:
            abort(404)
        return report(handle)

    @app.get("/requests")
    def list_requests() -> ResponseReturnValue:
        return {"open": [request_dict(one) for one in agents.runtime.pending()]}

    @app.post("/requests/<request_id>")
    def answer_request(request_id: str) -> ResponseReturnValue:
        answer = answer_from(request_id, request.get_json())
        agents.runtime.future_resume(answer, principal=principal())  # does not wait
        return {"id": request_id, "ok": answer.ok}


# -- the page ---------------------------------------------------------------------------------
# Its forms have a token of the session, which another site does not know.


def add_page(app: Flask) -> None:
    """Add what people use."""

    @app.get("/")
    def page() -> str:
        rt = agents.runtime
        token = session.setdefault("csrf", secrets.token_urlsafe())
        reports = map(report_by_id, session.get("runs", []))
        runs = [one for one in reports if one is not None]
        return render_template("page.html", runs=runs, open=rt.pending(), csrf=token)

    @app.post("/start")
    def start_by_form() -> ResponseReturnValue:
        check_token()
        run = started(request.form["prompt"])
        session["runs"] = [run.id, *session.get("runs", [])][:SHOWN]
        flash(f"started {run.id}")
        return redirect(url_for("page"), 303)

    @app.post("/answer")
    def answer_by_form() -> ResponseReturnValue:
        check_token()
        said = request.form
        answer = Answer(said["id"], said["ok"] == "yes", reason=said.get("reason") or None)
        try:
            agents.runtime.future_resume(answer, principal=principal())
        except ToolnexusError as error:
            flash(str(error))
        return redirect(url_for("page"), 303)


def check_token() -> None:
    """Refuse a form that this application has not given to this browser."""
    known, given = session.get("csrf"), request.form.get("csrf", "")
    if not known or not hmac.compare_digest(known.encode(), given.encode()):
        abort(403)
